"""The tensor-core instructions of one stage, for every width of a kernel, as one piece of PTX.

A kernel that takes several widths has one main loop, and in it a choice among instructions. Were the choice made in C++, each way
through it would have sums of its own as far as the compiler knows, which it then cannot always bring together in registers, and it
makes the tensor core wait for each instruction (ptxas says C7511 or C7515). In one piece all of them are plainly the same registers.
Each way ends its group of instructions itself: a commit after they meet again is an instruction of its own to the hardware, and a
wait that leaves one group under way then leaves only that one.
"""

from __future__ import annotations

from collections.abc import Sequence

PTX_TYPE = {"float16": "f16", "bfloat16": "bf16"}
ROWS, K = 64, 16
"""Of c and of k in an instruction."""
TILE_K = 64
BLOCKS_K = TILE_K // K


def products(name: str, widths: Sequence[int], dtype: str, blocks_m: int, k_major_a: bool, k_major_b: bool) -> str:
    """A struct called ``name``: ``add`` multiplies a stage, a (64 * blocks_m rows, 64) by b (``width`` columns, 64), into sums.

    Its arguments: sums (``kSums`` floats in registers: for each 64 rows those of the widest tile, a narrower one using the first),
    shared memory descriptors of a for each 64 rows and 16 k, and of b for each 16 k, the width, and whether to add to old sums.
    """
    sums = blocks_m * widths[-1] // 2
    registers = [f"%{number}" for number in range(sums)]
    descriptors_a = [[f"%{sums + block * BLOCKS_K + k}" for k in range(BLOCKS_K)] for block in range(blocks_m)]
    after = sums + blocks_m * BLOCKS_K
    descriptors_b = [f"%{after + k}" for k in range(BLOCKS_K)]
    width_operand, adds_operand = f"%{after + BLOCKS_K}", f"%{after + BLOCKS_K + 1}"
    transposed = f"{int(not k_major_a)}, {int(not k_major_b)}"

    def instructions(width: int) -> list[str]:
        lines = ["wgmma.fence.sync.aligned;"]
        for k in range(BLOCKS_K):
            for block in range(blocks_m):
                first = block * widths[-1] // 2
                list_of_sums = ", ".join(registers[first : first + width // 2])
                lines.append(
                    f"wgmma.mma_async.sync.aligned.m{ROWS}n{width}k{K}.f32.{PTX_TYPE[dtype]}.{PTX_TYPE[dtype]} {{{list_of_sums}}}, "
                    f"{descriptors_a[block][k]}, {descriptors_b[k]}, {'adds' if k == 0 else 'always'}, 1, 1, {transposed};"
                )
        return [*lines, "wgmma.commit_group.sync.aligned;"]

    def chosen(some: Sequence[int]) -> list[str]:
        """The instructions for a width among ``some``: halved until one is left."""
        if len(some) == 1:
            return instructions(some[0])
        low, high = some[: len(some) // 2], some[len(some) // 2 :]
        return [
            f"setp.lt.s32 narrow, {width_operand}, {high[0]};",
            f"@narrow bra BELOW_{high[0]};",
            *chosen(high),
            "bra DONE;",
            f"BELOW_{high[0]}:",
            *chosen(low),
        ]

    lines = [
        "{",
        ".reg .pred adds, always, narrow;",
        f"setp.ne.b32 adds, {adds_operand}, 0;",
        f"setp.eq.b32 always, {adds_operand}, {adds_operand};",
        *chosen(list(widths)),
        "DONE:",
        "}",
    ]
    text = "\n".join(f'        "{line}\\n"' for line in lines)
    in_out = ", ".join(f'"+f"(x[{number}])' for number in range(sums))
    inputs = [f'"l"(a[{block}][{k}])' for block in range(blocks_m) for k in range(BLOCKS_K)]
    inputs += [f'"l"(b[{k}])' for k in range(BLOCKS_K)] + ['"r"(width)', '"r"(adds)']
    return (
        f"struct {name} {{\n"
        f"  static constexpr int kSums = {sums}, kWidest = {widths[-1]};\n"
        f"  CUTLASS_DEVICE static void add(float* x, uint64_t const (&a)[{blocks_m}][{BLOCKS_K}], uint64_t const (&b)[{BLOCKS_K}], "
        f"int width, int adds) {{\n"
        f"    asm volatile(\n{text}\n        : {in_out}\n        : {', '.join(inputs)});\n  }}\n}};"
    )
