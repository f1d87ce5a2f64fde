"""The products of a trace timed on the GPU here, ours beside cuBLAS, launches back to back as ``timing`` has it."""

from __future__ import annotations

import torch

from .aten import Product
from .errors import Error
from .generator.spec import Layout
from .products import gemm_of
from .timing import buffer_sets, time_us


def measure(product: Product) -> tuple[float, float, str]:
    """(our microseconds, cuBLAS's, "") of one call, all of its batch; or (0, 0, why it was not measured).

    Operands are random and of the layouts that the program had, on the current GPU. A batch is a launch a product for us, and one
    bmm for cuBLAS.
    """
    l, m, n, k = product.l, product.m, product.n, product.k  # noqa: E741
    wide = product.out_dtype != product.dtype
    if wide and l > 1:
        return 0.0, 0.0, "batches into another dtype are not measured"
    size, out_size = product.dtype.itemsize, product.out_dtype.itemsize
    sets = buffer_sets(l * (size * (m * k + k * n) + out_size * m * n), most=16)
    gemm = gemm_of(product.dtype, product.out_dtype)
    try:
        a = [_random(l, m, k, product.dtype, product.layouts[0]) for _ in range(sets)]
        b = [_random(l, k, n, product.dtype, product.layouts[1]) for _ in range(sets)]
        c = [torch.empty(l, m, n, dtype=product.out_dtype, device="cuda") for _ in range(sets)]

        def ours(number: int) -> None:
            for x, y, z in zip(a[number], b[number], c[number], strict=True):
                gemm.run(x, y, z)

        def cublas(number: int) -> None:
            x, y, z = a[number], b[number], c[number]
            if wide:
                torch.mm(x[0], y[0], out_dtype=product.out_dtype, out=z[0])
            elif l == 1:
                torch.mm(x[0], y[0], out=z[0])
            else:
                torch.bmm(x, y, out=z)

        times = time_us({"ours": ours, "cublas": cublas}, sets)
    except (Error, RuntimeError) as error:  # torch.OutOfMemoryError is one
        return 0.0, 0.0, f"not measured: {str(error).partition(chr(10))[0]}"
    return times["ours"], times["cublas"], ""


def _random(l: int, rows: int, columns: int, dtype: torch.dtype, layout: Layout) -> torch.Tensor:  # noqa: E741
    shape = (l, rows, columns) if layout == "t" else (l, columns, rows)
    made = torch.randn(shape, dtype=dtype, device="cuda")
    return made if layout == "t" else made.mT
