/// Copies matrices whose lines start anywhere into ones whose lines start on 16 bytes, which TMA asks for: one launch for both
/// operands of a product, which starts while the kernel before it ends, as the product then starts while this one does.
///
/// Up to sixteen threads copy a piece of a line, fewer where lines are short. Each makes 16 bytes of the copy out of two aligned
/// loads, its own and its neighbour's, shifted by what the line's start is off: as fast as memory allows, however odd the lines
/// are.
#pragma once
#include <cuda_runtime.h>
#include <stdint.h>

#include <cstdio>

#include "cutlass_sk/abi.h"

namespace cutlass_sk {

constexpr int kPackThreads = 256, kPackBlocks = 1056;
/// The most threads that copy a piece of a line, as a power of 2, and how many vectors of 16 bytes each of them makes at most.
constexpr int kMostLanesLog2 = 4, kPackVectors = 4;

struct PackMatrix {
  char const* from;
  char const* end;  ///< behind the last byte that is read
  char* to;
  int64_t line_bytes, from_leading, to_leading;
  uint32_t pieces_of_line, pieces, warps;
  int32_t lanes_log2, vectors;  ///< threads that copy a piece, and vectors that each of them makes
};
struct PackParams {
  PackMatrix matrices[2];
};

/// 16 bytes of `matrix` at `address`, itself aligned; what is outside of it reads as zero. Past L1: it may hold what the kernel
/// before this one has overwritten, since that one need not have ended when this one starts.
__device__ inline uint4 load_aligned(PackMatrix const& matrix, char const* address) {
  if (address >= matrix.from && address + 16 <= matrix.end) return __ldcg(reinterpret_cast<uint4 const*>(address));
  uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    char const* const at = address + 2 * i;
    if (at >= matrix.from && at + 2 <= matrix.end) {
      words[i / 2] |= uint32_t(__ldcg(reinterpret_cast<uint16_t const*>(at))) << (i % 2 * 16);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/// The 16 bytes from byte `shift` on of two that follow each other.
__device__ inline uint4 shifted(uint4 low, uint4 high, uint32_t shift) {
  uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  if (shift & 8) {
#pragma unroll
    for (int i = 0; i < 6; ++i) w[i] = w[i + 2];
  }
  if (shift & 4) {
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = w[i + 1];
  }
  uint32_t const bits = shift % 4 * 8;
  return make_uint4(__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits), __funnelshift_r(w[2], w[3], bits),
                    __funnelshift_r(w[3], w[4], bits));
}

/// The first `bytes` (an even number) of 16, zeros behind them.
__device__ inline uint4 beginning(uint4 vector, int64_t bytes) {
  uint32_t w[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = bytes >= 4 * i + 4 ? w[i] : bytes > 4 * i ? w[i] & 0xffff : 0;
  return make_uint4(w[0], w[1], w[2], w[3]);
}

__device__ inline uint4 shuffled(uint4 vector, int lane, int lanes) {
  return make_uint4(__shfl_sync(~0u, vector.x, lane, lanes), __shfl_sync(~0u, vector.y, lane, lanes),
                    __shfl_sync(~0u, vector.z, lane, lanes), __shfl_sync(~0u, vector.w, lane, lanes));
}

/// short_lines: whether some have too few vectors for the most threads, a number that is worth knowing when this is compiled.
template <bool short_lines>
__global__ void __launch_bounds__(kPackThreads) pack(PackParams const __grid_constant__ params) {
#if __CUDA_ARCH__ >= 900
  // The product may come and set itself up: it waits for the copies, and these wait for what the product's operands come from.
  asm volatile("griddepcontrol.launch_dependents;");
#endif
  uint32_t const first = params.matrices[0].warps, total = first + params.matrices[1].warps;
  // A warp's pieces are of one matrix.
  for (uint64_t warp = (blockIdx.x * kPackThreads + threadIdx.x) / 32; warp < total; warp += gridDim.x * (kPackThreads / 32)) {
    PackMatrix const& matrix = params.matrices[warp >= first];
    int const lanes_log2 = short_lines ? matrix.lanes_log2 : kMostLanesLog2, vectors = short_lines ? matrix.vectors : kPackVectors;
    int const lanes = 1 << lanes_log2, lane = int(threadIdx.x) % lanes, step = lanes * 16;
    uint64_t const own = warp - (warp >= first ? first : 0), piece = (own * 32 + threadIdx.x % 32) >> lanes_log2;
    bool const inside = piece < matrix.pieces;
    uint32_t const number = inside ? uint32_t(piece) : 0, line = number / matrix.pieces_of_line;
    int64_t const offset = int64_t(number - line * matrix.pieces_of_line) * (kPackVectors * step) + lane * 16;
    int64_t const left = inside ? matrix.line_bytes - offset : 0;  // of the line, from the thread's first byte on
    char const* const from = matrix.from + line * matrix.from_leading + offset;
    uint32_t const shift = uint32_t(reinterpret_cast<uintptr_t>(from) % 16);
    uint4 loaded[kPackVectors + 1];
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
#pragma unroll
    for (int i = 0; i <= kPackVectors; ++i) {
      // The one behind a thread's last is the neighbour of the last thread's: the first thread loads it.
      bool const wanted = i <= vectors && int64_t(i * step) - shift < left && (i < vectors || lane == 0);
      loaded[i] = wanted ? load_aligned(matrix, from - shift + i * step) : uint4{};
    }
    char* const to = matrix.to + line * matrix.to_leading + offset;
#pragma unroll
    for (int i = 0; i < kPackVectors; ++i) {
      if (i >= vectors) break;  // the same for all of a warp
      uint4 const following = shuffled(lane == 0 ? loaded[i + 1] : loaded[i], (lane + 1) % lanes, lanes);
      uint4 vector = shifted(loaded[i], following, shift);
      int64_t const bytes = left - i * step;
      if (bytes < 16) vector = beginning(vector, bytes);
      if (bytes > 0) *reinterpret_cast<uint4*>(to + i * step) = vector;
    }
  }
}

inline int32_t fail_pack(CutlassSkResult* result, int32_t status, char const* message) {
  result->status = status;
  std::snprintf(result->message, sizeof(result->message), "%s", message);
  return status;
}

/// Fills `matrix`; false where the sizes or addresses are none that can be packed.
inline bool describe_matrix(CutlassSkPackMatrix const& given, PackMatrix& matrix) {
  if (given.lines == 0 || given.line_bytes == 0) return true;
  auto const address = [](void const* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
  int64_t const vectors_of_line = (given.line_bytes + 15) / 16;
  int lanes_log2 = 0;
  while (lanes_log2 < kMostLanesLog2 && (int64_t(1) << lanes_log2) < vectors_of_line) ++lanes_log2;
  int64_t const vectors = (vectors_of_line + (1 << lanes_log2) - 1) >> lanes_log2;
  int64_t const pieces_of_line = (vectors + kPackVectors - 1) / kPackVectors;
  if (given.lines < 0 || given.line_bytes < 0 || given.lines > UINT32_MAX / pieces_of_line) return false;
  if (address(given.from) % 2 != 0 || given.from_leading % 2 != 0 || given.from_leading < 0 || given.line_bytes % 2 != 0)
    return false;
  if (given.to == nullptr || address(given.to) % 16 != 0 || given.to_leading % 16 != 0) return false;
  if (given.lines > 1 && given.to_leading < vectors_of_line * 16) return false;
  matrix.from = static_cast<char const*>(given.from);
  matrix.end = matrix.from + (given.lines - 1) * given.from_leading + given.line_bytes;
  matrix.to = static_cast<char*>(given.to);
  matrix.line_bytes = given.line_bytes;
  matrix.from_leading = given.from_leading;
  matrix.to_leading = given.to_leading;
  matrix.pieces_of_line = uint32_t(pieces_of_line);
  matrix.pieces = uint32_t(given.lines * pieces_of_line);
  matrix.warps = uint32_t(((uint64_t(matrix.pieces) << lanes_log2) + 31) / 32);
  matrix.lanes_log2 = lanes_log2;
  matrix.vectors = int32_t(vectors < kPackVectors ? vectors : kPackVectors);
  return true;
}

}  // namespace cutlass_sk

/// Enqueues the copies on the current device.
CUTLASS_SK_EXPORT int32_t cutlass_sk_pack(CutlassSkPack const* given, CutlassSkResult* result) {
  using namespace cutlass_sk;
  if (result == nullptr) return CUTLASS_SK_BAD_ABI;
  *result = CutlassSkResult{};
  if (given == nullptr || given->struct_bytes != int32_t(sizeof(*given))) {
    return fail_pack(result, CUTLASS_SK_BAD_ABI, "struct sizes differ");
  }
  PackParams params{};
  for (int i = 0; i < 2; ++i) {
    if (!describe_matrix(given->matrices[i], params.matrices[i])) {
      return fail_pack(result, CUTLASS_SK_MISALIGNED, "a matrix is of sizes or addresses that are not packed");
    }
  }
  uint64_t const total = uint64_t(params.matrices[0].warps) + params.matrices[1].warps;
  if (total == 0) return CUTLASS_SK_OK;
  if (total > UINT32_MAX) return fail_pack(result, CUTLASS_SK_BAD_PROBLEM, "more pieces to pack than can be counted");
  uint64_t const blocks = (total * 32 + kPackThreads - 1) / kPackThreads;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(blocks < kPackBlocks ? blocks : kPackBlocks));
  config.blockDim = dim3(kPackThreads);
  config.stream = static_cast<cudaStream_t>(given->stream);
  config.attrs = &attribute;
  config.numAttrs = given->programmatic != 0 ? 1 : 0;
  bool short_lines = false;
  for (PackMatrix const& matrix : params.matrices) short_lines |= matrix.pieces > 0 && matrix.lanes_log2 < kMostLanesLog2;
  void const* const kernel = short_lines ? reinterpret_cast<void const*>(pack<true>) : reinterpret_cast<void const*>(pack<false>);
  void* parameters[] = {&params};
  if (cudaError_t const error = cudaLaunchKernelExC(&config, kernel, parameters)) {
    (void)cudaGetLastError();
    result->cuda_error = int32_t(error);
    return fail_pack(result, CUTLASS_SK_CUDA_ERROR, cudaGetErrorString(error));
  }
  return CUTLASS_SK_OK;
}
