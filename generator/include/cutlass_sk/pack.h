/// Copies matrices whose lines start anywhere into ones whose lines start on 16 bytes, which TMA asks for: one launch for both
/// operands of a product, which starts while the kernel before it ends, as the product then starts while this one does.
///
/// Up to sixteen threads copy a piece of a line, fewer where lines are short. Each makes 16 bytes of the copy out of two aligned
/// loads, its own and its neighbour's, shifted by what the line's start is off: as fast as memory allows, however odd the lines
/// are. Small copies take as long as their instructions take to be fetched and the memory to answer: there are few, those that run
/// in a row lie in a row, and what can be worked out before the wait for the launch before is.
#pragma once
#include <cuda_runtime.h>
#include <stdint.h>

#include <cstdio>

#include "cutlass_sk/abi.h"

namespace cutlass_sk {

constexpr int kPackThreads = 256, kPackBlocksOfSm = 4, kPackBlocks = 1056;
/// The most threads that copy a piece of a line, as a power of 2.
constexpr int kMostLanesLog2 = 4;
/// How many vectors of 16 bytes each of them makes at most, of so many bytes in all.
inline int most_vectors_for(int64_t bytes) { return bytes <= (512 << 10) ? 1 : bytes <= (8 << 20) ? 2 : 4; }

struct PackMatrix {
  char const* from;
  char const* end;  ///< behind the last byte that is read
  char* to;
  int64_t from_leading, to_leading;
  uint32_t pieces_of_line, pieces, warps;
  int32_t last_bytes;                     ///< of a line's last piece
  uint32_t multiplier, multiplier_shift;  ///< by which a number below 2^31 is divided by pieces_of_line, if that is not 1
  int32_t lanes_log2, vectors;            ///< threads that copy a piece, and vectors that each of them makes
};
struct PackParams {
  PackMatrix matrices[2];
};

/// 16 bytes from an aligned address, past L1: it may hold what the kernel before this one has overwritten, since that one need not
/// have ended when this one starts.
__device__ inline uint4 load_if(bool condition, char const* address) {
  uint4 v{};
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %5, 0;\n"
      "@p ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      "}\n"
      : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
      : "l"(address), "r"(int(condition))
      : "memory");
  return v;
}

/// The same, by 2 bytes at a time and all of them at once, of what lies in [begin, end), which it meets; zeros elsewhere.
__device__ inline uint4 load_within(char const* address, char const* begin, char const* end) {
  uint32_t const skipped = address < begin ? uint32_t(begin - address) / 2 : 0;
  uint32_t const known = address + 16 > end ? uint32_t(end - address) / 2 : 8;
  uint32_t const present = 0xff << skipped & 0xff >> (8 - known);
  uint32_t words[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    words[i] = 0;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        ".reg .b16 element;\n"
        "setp.ne.b32 p, %2, 0;\n"
        "mov.b16 element, 0;\n"
        "@p ld.global.cg.b16 element, [%1];\n"
        "cvt.u32.u16 %0, element;\n"
        "}\n"
        : "=r"(words[i])
        : "l"(address + 2 * i), "r"(present & 1u << i)
        : "memory");
  }
  return make_uint4(words[0] | words[1] << 16, words[2] | words[3] << 16, words[4] | words[5] << 16, words[6] | words[7] << 16);
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

/// The first `bytes` of 16, zeros behind them.
__device__ inline uint4 beginning(uint4 vector, int32_t bytes) {
  uint32_t w[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t behind;  // shl gives 0 for 32 bits and more
    asm("shl.b32 %0, 0xffffffff, %1;" : "=r"(behind) : "r"(max(8 * bytes - 32 * i, 0)));
    w[i] &= ~behind;
  }
  return make_uint4(w[0], w[1], w[2], w[3]);
}

__device__ inline uint4 shuffled(uint4 vector, int lane, int lanes) {
  return make_uint4(__shfl_sync(~0u, vector.x, lane, lanes), __shfl_sync(~0u, vector.y, lane, lanes),
                    __shfl_sync(~0u, vector.z, lane, lanes), __shfl_sync(~0u, vector.w, lane, lanes));
}

/// A warp copies pieces of one matrix at a time, a thread `most_vectors` vectors of a piece at most. short_lines: whether some
/// lines have too few vectors for the most threads, a number that is worth knowing when this is compiled.
template <int most_vectors, bool short_lines>
__global__ void __launch_bounds__(kPackThreads, kPackBlocksOfSm) pack(PackParams const __grid_constant__ params) {
#if __CUDA_ARCH__ >= 900
  // The product may come and set itself up: it waits for the copies, and these wait for what the product's operands come from.
  asm volatile("griddepcontrol.launch_dependents;");
#endif
  uint32_t const first = params.matrices[0].warps, total = first + params.matrices[1].warps;
#pragma unroll 1
  for (uint32_t warp = (blockIdx.x * kPackThreads + threadIdx.x) / 32; warp < total; warp += gridDim.x * (kPackThreads / 32)) {
    PackMatrix const& matrix = params.matrices[warp >= first];
    int const lanes_log2 = short_lines ? matrix.lanes_log2 : kMostLanesLog2, vectors = short_lines ? matrix.vectors : most_vectors;
    int const lanes = 1 << lanes_log2, lane = int(threadIdx.x) % lanes, step = lanes * 16;
    uint32_t const own = warp - (warp >= first ? first : 0);
    uint32_t const piece = (own << (5 - lanes_log2)) + (threadIdx.x % 32 >> lanes_log2);
    bool const inside = piece < matrix.pieces;
    uint32_t const pieces_of_line = matrix.pieces_of_line;
    uint32_t const line = pieces_of_line == 1 ? piece : __umulhi(piece, matrix.multiplier) >> matrix.multiplier_shift;
    uint32_t const part = piece - line * pieces_of_line;
    int64_t const offset = int64_t(part) * (vectors * step) + lane * 16;
    char const* const from = matrix.from + line * matrix.from_leading + offset;
    char* const to = matrix.to + line * matrix.to_leading + offset;
    int32_t const shift = int32_t(reinterpret_cast<uintptr_t>(from) % 16);
    char const* const aligned = from - shift;
    // What is left of the line and of the matrix, as far as the thread can see.
    constexpr int32_t kFar = most_vectors * 256 + 32;
    int32_t const left = inside ? (part + 1 == pieces_of_line ? matrix.last_bytes - lane * 16 : kFar) : -kFar;
    int64_t const rest = matrix.end - aligned;
    int32_t const room = rest < kFar ? int32_t(rest) : kFar;
    // Bits tell vectors that are loaded whole, and those in part: the first and the last of the matrix. The one behind a thread's
    // last is the neighbour of the last thread's: the first thread loads it.
    uint32_t whole = 0, in_part = 0;
#pragma unroll
    for (int i = 0; i <= most_vectors; ++i) {
      bool const wanted = i * step - shift < left && i <= vectors && (i < vectors || lane == 0);
      bool const is_whole = i * step + 16 <= room && (i > 0 || aligned >= matrix.from);
      whole |= wanted && is_whole ? 1u << i : 0;
      in_part |= wanted && !is_whole ? 1u << i : 0;
    }
#if __CUDA_ARCH__ >= 900
    // By a predicate, lest ptxas move the wait in front of what comes before it here. Threads that copy nothing need not wait.
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %0, 0;\n"
        "@p griddepcontrol.wait;\n"
        "}\n" ::"r"(whole | in_part)
        : "memory");
#endif
    uint4 loaded[most_vectors + 1];
#pragma unroll
    for (int i = 0; i <= most_vectors; ++i) loaded[i] = load_if(whole >> i & 1, aligned + i * step);
    if (__builtin_expect(__any_sync(~0u, in_part != 0), false)) {
#pragma unroll 1
      for (int next = 0; next <= most_vectors; ++next) {
        if ((in_part >> next & 1) == 0) continue;
        uint4 const vector = load_within(aligned + next * step, matrix.from, matrix.end);
#pragma unroll
        for (int i = 0; i <= most_vectors; ++i) loaded[i] = i == next ? vector : loaded[i];
      }
    }
#pragma unroll
    for (int i = 0; i < most_vectors; ++i) {
      if (i >= vectors) break;  // the same for all of a warp
      uint4 const following = shuffled(lane == 0 ? loaded[i + 1] : loaded[i], (lane + 1) % lanes, lanes);
      uint4 const vector = shifted(loaded[i], following, uint32_t(shift));
      int32_t const bytes = left - i * step;
      if (bytes > 0) *reinterpret_cast<uint4*>(to + i * step) = beginning(vector, bytes);
    }
  }
}

inline int32_t fail_pack(CutlassSkResult* result, int32_t status, char const* message) {
  result->status = status;
  std::snprintf(result->message, sizeof(result->message), "%s", message);
  return status;
}

/// Fills `matrix`, for threads that make `most_vectors` at most; false where sizes or addresses are none that can be packed.
inline bool describe_matrix(CutlassSkPackMatrix const& given, int most_vectors, PackMatrix& matrix) {
  if (given.lines == 0 || given.line_bytes == 0) return true;
  auto const address = [](void const* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
  int64_t const vectors_of_line = (given.line_bytes + 15) / 16;
  int lanes_log2 = 0;
  while (lanes_log2 < kMostLanesLog2 && (int64_t(1) << lanes_log2) < vectors_of_line) ++lanes_log2;
  int64_t const vectors = (vectors_of_line + (1 << lanes_log2) - 1) >> lanes_log2;
  int64_t const pieces_of_line = (vectors + most_vectors - 1) / most_vectors;
  if (given.lines < 0 || given.line_bytes < 0 || given.lines > INT32_MAX / pieces_of_line) return false;
  if (address(given.from) % 2 != 0 || given.from_leading % 2 != 0 || given.from_leading < 0 || given.line_bytes % 2 != 0)
    return false;
  if (given.to == nullptr || address(given.to) % 16 != 0 || given.to_leading % 16 != 0) return false;
  if (given.lines > 1 && given.to_leading < vectors_of_line * 16) return false;
  matrix.from = static_cast<char const*>(given.from);
  matrix.end = matrix.from + (given.lines - 1) * given.from_leading + given.line_bytes;
  matrix.to = static_cast<char*>(given.to);
  matrix.from_leading = given.from_leading;
  matrix.to_leading = given.to_leading;
  matrix.pieces_of_line = uint32_t(pieces_of_line);
  while (pieces_of_line > int64_t(2) << matrix.multiplier_shift) ++matrix.multiplier_shift;
  matrix.multiplier =
      uint32_t(((uint64_t(1) << (32 + matrix.multiplier_shift)) + uint64_t(pieces_of_line) - 1) / uint64_t(pieces_of_line));
  matrix.pieces = uint32_t(given.lines * pieces_of_line);
  matrix.warps = uint32_t(((uint64_t(matrix.pieces) << lanes_log2) + 31) / 32);
  matrix.lanes_log2 = lanes_log2;
  matrix.last_bytes = int32_t(given.line_bytes - (pieces_of_line - 1) * (most_vectors << lanes_log2) * 16);
  matrix.vectors = int32_t(vectors < most_vectors ? vectors : most_vectors);
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
  int64_t bytes = 0;
  for (CutlassSkPackMatrix const& matrix : given->matrices) bytes += matrix.lines * matrix.line_bytes;
  int const most_vectors = most_vectors_for(bytes);
  for (int i = 0; i < 2; ++i) {
    if (!describe_matrix(given->matrices[i], most_vectors, params.matrices[i])) {
      return fail_pack(result, CUTLASS_SK_MISALIGNED, "a matrix is of sizes or addresses that are not packed");
    }
  }
  uint64_t const total = uint64_t(params.matrices[0].warps) + params.matrices[1].warps;
  if (total == 0) return CUTLASS_SK_OK;
  if (total > INT32_MAX) return fail_pack(result, CUTLASS_SK_BAD_PROBLEM, "more pieces to pack than can be counted");
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
  auto* const kernel = most_vectors == 1   ? short_lines ? pack<1, true> : pack<1, false>
                       : most_vectors == 2 ? short_lines ? pack<2, true> : pack<2, false>
                       : short_lines       ? pack<4, true>
                                           : pack<4, false>;
  void* parameters[] = {&params};
  if (cudaError_t const error = cudaLaunchKernelExC(&config, reinterpret_cast<void const*>(kernel), parameters)) {
    (void)cudaGetLastError();
    result->cuda_error = int32_t(error);
    return fail_pack(result, CUTLASS_SK_CUDA_ERROR, cudaGetErrorString(error));
  }
  return CUTLASS_SK_OK;
}
