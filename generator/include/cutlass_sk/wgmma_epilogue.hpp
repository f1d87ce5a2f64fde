/// c = alpha * sums + beta * c for tiles of any width, 32 columns at a time, with ordinary stores.
///
/// TMA would store whole boxes, but to hand it one takes a fence, a barrier and a thread that waits: more time than a short tile's
/// products take. Float32 sums go from registers to whole sectors of memory; 16-bit ones pass through shared memory, to become lines
/// of 64 bytes (row-major c: each warp by itself) or 128 (column-major: the warpgroup's 64 rows). Warpgroups never wait for each
/// other here. The code is short because it is there once for each 32 columns that a tile may have: sums in registers cannot be
/// indexed at run time.
#pragma once
#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/detail/layout.hpp"
#include "cutlass/numeric_conversion.h"

namespace cutlass_sk {

/// warpgroups: consumer warpgroups of a CTA. blocks_m: blocks of 64 rows that one of them has of a tile, `between` rows apart.
template <class Element_, class LayoutC, int warpgroups, int blocks_m, int between>
class WgmmaEpilogue {
 public:
  using ElementC = Element_;
  using StrideC = cutlass::detail::TagToStrideC_t<LayoutC>;
  using StrideD = StrideC;
  static constexpr int kAlignmentBytes = 16;
  static constexpr int kColumns = 32, kRows = 64;
  static constexpr int kSums = kRows * kColumns / cutlass::NumThreadsPerWarpGroup;  ///< of a thread

 private:
  static constexpr int kBytes = int(sizeof(ElementC));
  static constexpr bool kRowMajor = cute::is_static_v<decltype(cute::get<1>(StrideC{}))>;
  static constexpr bool kStaged = kBytes == 2;
  static_assert(kStaged || kBytes == 4);
  /// Of 64 x 32 staged elements: contiguous ones, and how many a thread stores at once.
  static constexpr int kInner = kRowMajor ? kColumns : kRows, kLineBytes = kInner * kBytes;
  static constexpr int kVector = kAlignmentBytes / kBytes;
  static constexpr int kBuffers = 2, kBufferBytes = kStaged ? kRows * kColumns * kBytes : 16;

 public:
  struct TensorStorage {
    alignas(128) uint8_t buffers[warpgroups][kBuffers][kBufferBytes];
  };
  using SharedStorage = TensorStorage;

  struct Arguments {
    struct Thread {
      float alpha = 1, beta = 0;
    } thread;
    ElementC const* ptr_C = nullptr;
    StrideC dC{};
    ElementC* ptr_D = nullptr;
    StrideD dD{};
  };
  struct Params {
    float alpha, beta;
    ElementC* c;      ///< source and destination
    int64_t leading;  ///< from one line of contiguous elements to the next
    int32_t m, n;

    void set(double new_alpha, double new_beta, ElementC* new_c) {
      alpha = float(new_alpha);
      beta = float(new_beta);
      c = new_c;
    }
  };

  template <class ProblemShape>
  static Params to_underlying_arguments(ProblemShape const& problem_shape, Arguments const& arguments, void*) {
    int64_t const leading = kRowMajor ? int64_t(cute::get<0>(arguments.dD)) : int64_t(cute::get<1>(arguments.dD));
    return {arguments.thread.alpha, arguments.thread.beta, arguments.ptr_D, leading, int(cute::get<0>(problem_shape)),
            int(cute::get<1>(problem_shape))};
  }

  CUTLASS_DEVICE WgmmaEpilogue(Params const& params, TensorStorage& storage) : params_(params), storage_(storage) {}

  /// Called by a warpgroup for a tile whose first element is (row, column): of `widest` columns' sums, those of the first
  /// `subtiles` runs of 32 columns that are `mine`. `warpgroup` numbers it in the CTA, `row` is its own first one.
  template <int widest, class Mine>
  CUTLASS_DEVICE void store(float* sums, int row, int column, int subtiles, Mine const& mine, int warpgroup) {
    int thread = int(threadIdx.x) % cutlass::NumThreadsPerWarpGroup;
    asm volatile("" : "+r"(thread));  // lest what follows is computed, and kept in registers, before the main loop
    auto const each = [&](auto const& use) {
      CUTLASS_PRAGMA_UNROLL
      for (int subtile = 0; subtile < widest / kColumns; ++subtile) {
        if (subtile >= subtiles || !mine(subtile)) continue;
        CUTLASS_PRAGMA_UNROLL
        for (int block = 0; block < blocks_m; ++block) {
          use(sums + block * (widest / 2) + subtile * kSums, row + block * between, column + subtile * kColumns);
        }
      }
    };
    float scale = params_.alpha;
    if (params_.beta != 0) {  // apart, so that the way without it is short
      each([&](float* some, int y, int x) { add_source(some, y, x, thread); });
      scale = 1;
    }
    each([&](float* some, int y, int x) {
      if constexpr (kStaged) {
        store_staged(some, scale, y, x, thread, warpgroup);
      } else {
        store_directly(some, scale, y, x, thread);
      }
    });
  }

 private:
  Params const& params_;
  TensorStorage& storage_;
  int buffer_ = 0;

  CUTLASS_DEVICE ElementC* at(int row, int column) const {
    return params_.c + (kRowMajor ? row * params_.leading + column : column * params_.leading + row);
  }

  /// Of a thread's i-th sum: of every 8 columns, it has two neighbouring ones in its first row and in the 8th after that.
  CUTLASS_DEVICE static int first_row(int thread) { return thread / 32 * 16 + thread % 32 / 4; }
  CUTLASS_DEVICE static int first_column(int thread) { return thread % 4 * 2; }
  CUTLASS_DEVICE static constexpr int row_of(int i) { return i / 2 % 2 * 8; }
  CUTLASS_DEVICE static constexpr int column_of(int i) { return i / 4 * 8 + i % 2; }

  CUTLASS_DEVICE void add_source(float* sums, int row, int column, int thread) const {
    row += first_row(thread);
    column += first_column(thread);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kSums; ++i) {
      int const y = row + row_of(i), x = column + column_of(i);
      float old = 0;
      if (y < params_.m && x < params_.n) old = float(*at(y, x));
      sums[i] = params_.alpha * sums[i] + params_.beta * old;
    }
  }

  /// Four threads have 32 bytes of a row, eight have as much of a column.
  CUTLASS_DEVICE void store_directly(float const* sums, float scale, int row, int column, int thread) const {
    row += first_row(thread);
    column += first_column(thread);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kSums; i += 2) {
      int const y = row + row_of(i), x = column + column_of(i);
      float2 const pair = make_float2(scale * sums[i], scale * sums[i + 1]);
      bool const first = y < params_.m && x < params_.n, second = y < params_.m && x + 1 < params_.n;
      if (kRowMajor && second) {
        *reinterpret_cast<float2*>(at(y, x)) = pair;
      } else {
        if (first) *at(y, x) = pair.x;
        if (!kRowMajor && second) *at(y, x + 1) = pair.y;
      }
    }
  }

  CUTLASS_DEVICE void store_staged(float const* sums, float scale, int row, int column, int thread, int warpgroup) {
    float values[kSums];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kSums; ++i) values[i] = scale * sums[i];
    uint32_t const buffer = cute::cast_smem_ptr_to_uint(storage_.buffers[warpgroup][buffer_]);
    buffer_ ^= 1;
    write(buffer, values, thread);
    // Whoever is past this has read the other buffer.
    if constexpr (kRowMajor) {
      __syncwarp();
    } else {
      cutlass::arch::NamedBarrier::sync(cutlass::NumThreadsPerWarpGroup, uint32_t(warpgroup));
    }
    constexpr int kVectorsOfLine = kInner / kVector, kLines = kRows * kColumns / kInner;
    constexpr int kAtOnce = (kRowMajor ? 32 : cutlass::NumThreadsPerWarpGroup) / kVectorsOfLine;
    int const first = kRowMajor ? thread / 32 * 16 + thread % 32 / kVectorsOfLine : thread / kVectorsOfLine;
    int const inner = thread % kVectorsOfLine * kVector;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < (kRowMajor ? 16 : kLines) / kAtOnce; ++i) {
      int const line = first + i * kAtOnce;
      uint32_t const from = buffer + place(line, inner);
      int const y = row + (kRowMajor ? line : inner), x = column + (kRowMajor ? inner : line);
      int const left = (kRowMajor ? y < params_.m : x < params_.n) ? (kRowMajor ? params_.n - x : params_.m - y) : 0;
      if (left >= kVector) {
        uint4 vector;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(vector.x), "=r"(vector.y), "=r"(vector.z), "=r"(vector.w)
                     : "r"(from)
                     : "memory");
        *reinterpret_cast<uint4*>(at(y, x)) = vector;
      } else {
        auto* const to = reinterpret_cast<uint16_t*>(at(y, x));
        CUTLASS_PRAGMA_NO_UNROLL
        for (int j = 0; j < left; ++j) {
          asm volatile("ld.shared.u16 %0, [%1];" : "=h"(to[j]) : "r"(from + j * kBytes) : "memory");
        }
      }
    }
  }

  /// Two runs of 8 columns at a time: four blocks of 8 x 8, the lower rows' and the upper rows', of which lane i says where the
  /// (i % 8)-th line of the (i / 8)-th goes.
  CUTLASS_DEVICE static void write(uint32_t buffer, float const* values, int thread) {
    int const warp = thread / 32, lane = thread % 32;
    CUTLASS_PRAGMA_UNROLL
    for (int run = 0; run < kColumns / 8; run += 2) {
      int const rows = warp * 16 + lane / 8 % 2 * 8, columns = (run + lane / 16) * 8;
      uint32_t const to = buffer + (kRowMajor ? place(rows + lane % 8, columns) : place(columns + lane % 8, rows));
      float const* const v = values + run * 4;
      uint32_t const a = pack(v[0], v[1]), b = pack(v[2], v[3]), c = pack(v[4], v[5]), d = pack(v[6], v[7]);
      if constexpr (kRowMajor) {
        asm volatile("stmatrix.sync.aligned.x4.m8n8.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d)
                     : "memory");
      } else {
        asm volatile("stmatrix.sync.aligned.x4.trans.m8n8.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c),
                     "r"(d)
                     : "memory");
      }
    }
  }

  /// Byte offset in a buffer of element `inner` of a line. 16-byte pieces are exchanged within four (lines of 64 bytes) or eight
  /// (128), so that the same piece of eight lines is in all banks.
  CUTLASS_DEVICE static uint32_t place(int line, int inner) {
    uint32_t const offset = uint32_t(line * kLineBytes + inner * kBytes);
    return kLineBytes == 128 ? offset ^ ((offset >> 3) & 0x70) : offset ^ ((offset >> 3) & 0x30);
  }

  CUTLASS_DEVICE static uint32_t pack(float low, float high) {
    cutlass::Array<float, 2> const values{low, high};
    cutlass::Array<ElementC, 2> const packed = cutlass::NumericArrayConverter<ElementC, float, 2>{}(values);
    return reinterpret_cast<uint32_t const&>(packed);
  }
};

/// What an epilogue leaves of a CTA's shared memory for stages of operands, in bytes, beside the barriers.
template <class Epilogue, int ctas_per_sm>
constexpr int kStageMemory = (233472 / ctas_per_sm - 1024 - 1024 - int(sizeof(typename Epilogue::SharedStorage))) / 1024 * 1024;

}  // namespace cutlass_sk
