/// Which elements of a tile a thread of an fp64 kernel holds, and where they lie in shared memory. Plain integer arithmetic, the
/// same on host and device; a test emulates a whole tile with it.
///
/// The instruction is 16x8x4 (or 8, 16) doubles. Its 16-row operand is called x, its 8-column operand y; which of a and b is x, the
/// main loop says. In the instruction lane 4 g + t has rows g and g + 8 of x, column g of y, and one element of k in each 4: its
/// slots. Registers follow in pairs of halves: x's two rows of one slot. y's halves are two instructions side by side.
///
/// Which row, column or k of the tile these are is free, as long as x and y agree on k. TMA has put chunks of 16 bytes at
/// chunk ^ (line % 8) of lines of 128 bytes, and what lanes read at a time must lie apart in these: eight lanes (t = 0..3 of two
/// neighbouring g) where each reads 16 bytes, sixteen where it reads 8.
///
///     rows contiguous: two halves of a slot are read together. Row 16 group + 2 g + half, k = 8 block + 2 t + slot:
///                      line k, chunk g, and g ^ (2 t + slot) differ.
///     k contiguous:    two slots of a half are read together. The same k; row 16 group + 2 place(g) + half, with place(g) being g
///                      with its lowest two bits exchanged: line = row, chunk 4 (block % 2) + t, and t ^ (row % 8) differ because
///                      the rows of two neighbouring g differ in bit 2.
///     narrow:          the same, where x is contiguous in k. Two slots of a row would then be moved apart to come into pairs of
///                      halves, so that they are read one by one, 8 bytes each: k = 8 block + 2 t + (slot ^ (t % 2)), lest all
///                      lanes read the same half of their chunks; row 16 group + 8 half + place(g), place(g) being g's bits 0, 2,
///                      1: in four neighbouring g bits 0 and 2 of the row differ, and with them the places.
#pragma once
#include <stdint.h>

#if !defined(CUTLASS_SK_HOST_DEVICE)
#if defined(__CUDACC__)
#define CUTLASS_SK_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define CUTLASS_SK_HOST_DEVICE inline
#endif
#endif

namespace cutlass_sk {

/// One operand's tile: `rows` (m or n) by `tile_k` doubles, k contiguous (`k_major`) or rows contiguous.
template <bool k_major, bool narrow, int rows, int tile_k>
struct Fp64Operand {
  static constexpr bool kKMajor = k_major, kNarrow = narrow;
  static constexpr int kLineBytes = 128, kGroup = 16;
  static constexpr int kStageBytes = rows * tile_k * 8;
  static_assert(rows % kGroup == 0 && tile_k % kGroup == 0, "a tile is made of 16 x 16 doubles");
  static_assert(k_major || !narrow, "contiguous rows are read in pairs");

  /// Where TMA puts an element: its byte offset within a stage.
  CUTLASS_SK_HOST_DEVICE static constexpr uint32_t placed(int row, int k) {
    int const line = k_major ? row : k, along = k_major ? k : row;
    int const lines = along / kGroup * (k_major ? rows : tile_k) + line;
    return uint32_t(lines * kLineBytes + ((along % kGroup / 2) ^ (line % 8)) * 16 + along % 2 * 8);
  }

  /// Row within its group.
  CUTLASS_SK_HOST_DEVICE static constexpr int row(int g, int half) {
    if (narrow) return 8 * half + ((g & 1) | (g & 2) << 1 | (g & 4) >> 1);
    return 2 * (k_major ? (g & 4) | (g & 1) << 1 | (g & 2) >> 1 : g) + half;
  }

  /// Byte offset, within a stage, of what a lane reads first: group `group`, block 0, half 0, slot 0.
  CUTLASS_SK_HOST_DEVICE static constexpr uint32_t start(int group, int lane) {
    int const g = lane / 4, t = lane % 4;
    int const line = k_major ? row(g, 0) : 2 * t;
    int const chunk = (k_major ? t : g) ^ (line % 8);
    return uint32_t(group * group_bytes() + line * kLineBytes + chunk * 16 + (narrow ? t % 2 * 8 : 0));
  }

  /// From there to any other: exclusive or, then addition. Stages begin at multiples of 1024 bytes, so that theirs may come first.
  CUTLASS_SK_HOST_DEVICE static constexpr uint32_t flip(int block, int slot, int half) {
    uint32_t const line = narrow ? slot * 8 : (k_major ? half : slot) * (kLineBytes + 16);
    return line ^ (k_major ? uint32_t(block % 2 * 64) : 0u);
  }
  CUTLASS_SK_HOST_DEVICE static constexpr uint32_t step(int group, int block, int half) {
    int const lines = k_major ? block / 2 * rows : block * 8;
    return uint32_t(group * group_bytes() + (lines + (narrow ? half * 8 : 0)) * kLineBytes);
  }

 private:
  CUTLASS_SK_HOST_DEVICE static constexpr int group_bytes() { return (k_major ? kGroup : tile_k) * kLineBytes; }
};

/// How `warps` share a tile of tile_x by tile_y: in the arrangement that reads least, and of equals that with most of x, which
/// costs fewer registers.
constexpr int fp64_warps_x(int tile_x, int tile_y, int warps) {
  int best = 0;
  for (int x = 1; x <= warps; x *= 2) {
    int const y = warps / x;
    if (tile_x % (16 * x) != 0 || tile_y % (16 * y) != 0) continue;
    if (best == 0 || tile_x / x + tile_y / y < tile_x / best + tile_y / (warps / best)) best = x;
  }
  return best;
}

/// The sums of a thread: for each 16 x 16 of x and y, the halves of x and y, and `column` (0 or 1: the lane's two columns of an
/// instruction).
template <class OperandX, class OperandY, int tile_x, int tile_y, int warps>
struct Fp64Sums {
  static constexpr int kWarpsX = fp64_warps_x(tile_x, tile_y, warps);
  static_assert(kWarpsX > 0, "each warp needs 16 x 16 of the tile");
  static constexpr int kWarpsY = warps / kWarpsX;
  static constexpr int kGroupsX = tile_x / kWarpsX / 16, kGroupsY = tile_y / kWarpsY / 16;
  static constexpr int kCount = kGroupsX * kGroupsY * 8;

  CUTLASS_SK_HOST_DEVICE static constexpr int first_group_x(int warp) { return warp % kWarpsX * kGroupsX; }
  CUTLASS_SK_HOST_DEVICE static constexpr int first_group_y(int warp) { return warp / kWarpsX * kGroupsY; }

  /// Four sums are one instruction's.
  CUTLASS_SK_HOST_DEVICE static constexpr int index(int group_x, int group_y, int half_x, int half_y, int column) {
    return ((group_x * kGroupsY + group_y) * 2 + half_y) * 4 + half_x * 2 + column;
  }
  /// Where in the tile the first of a thread's sums lies, and how far from there another one.
  CUTLASS_SK_HOST_DEVICE static constexpr int first_x(int warp, int lane) {
    return first_group_x(warp) * 16 + OperandX::row(lane / 4, 0);
  }
  CUTLASS_SK_HOST_DEVICE static constexpr int first_y(int warp, int lane) {
    return first_group_y(warp) * 16 + OperandY::row(lane % 4 * 2, 0);
  }
  CUTLASS_SK_HOST_DEVICE static constexpr int step_x(int group_x, int half_x) { return group_x * 16 + OperandX::row(0, half_x); }
  CUTLASS_SK_HOST_DEVICE static constexpr int step_y(int group_y, int half_y, int column) {
    return group_y * 16 + OperandY::row(column, half_y);
  }

  /// Two sums that lie kDistanceX apart along x, or next to each other along y: the `number`th (0 to 3) of a 16 x 16, its first or
  /// second element.
  struct Half {
    int group_x, group_y, half_x, half_y, column;
    CUTLASS_SK_HOST_DEVICE constexpr int index() const { return Fp64Sums::index(group_x, group_y, half_x, half_y, column); }
  };
  static constexpr int kDistanceX = OperandX::kNarrow ? 8 : 1;
  CUTLASS_SK_HOST_DEVICE static constexpr Half pair(bool along_x, int group_x, int group_y, int number, int element) {
    int const high = number / 2, low = number % 2;
    if (along_x) return {group_x, group_y, element, high, low};
    if (OperandY::kNarrow) return {group_x, group_y, high, low, element};
    return {group_x, group_y, high, element, low};
  }
};

}  // namespace cutlass_sk
