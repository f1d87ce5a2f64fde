/// c = alpha * sums + beta * c for tiles of any width: 32 columns at a time through shared memory, stored by TMA.
///
/// Each warpgroup has the rows that its instructions give it, memory of its own, and a barrier of its own: warpgroups never wait
/// for each other here. The code is short because it is there once for each 32 columns that a tile may have: sums in registers
/// cannot be indexed at run time.
#pragma once
#include <cuda.h>

#include "cute/arch/copy_sm90.hpp"
#include "cute/arch/copy_sm90_tma.hpp"
#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/detail/layout.hpp"
#include "cutlass/numeric_conversion.h"
#include "cutlass_sk/tensor_map.h"

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
  static_assert(kBytes == 2 || kBytes == 4);
  /// Contiguous elements of a box, and how many boxes 64 x 32 elements make: none is wider than 128 bytes.
  static constexpr int kInner = kRowMajor ? kColumns : kRows * kBytes <= 128 ? kRows : 128 / kBytes;
  static constexpr int kOuter = kRowMajor ? kRows : kColumns, kBoxes = kRows * kColumns / (kInner * kOuter);
  static constexpr int kLineBytes = kInner * kBytes, kBoxBytes = kLineBytes * kOuter, kBufferBytes = kBoxBytes * kBoxes;
  static constexpr int kBuffers = kBytes == 2 ? 3 : 2;

 public:
  struct TensorStorage {
    alignas(1024) uint8_t buffers[warpgroups][kBuffers][kBufferBytes];
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
    CUtensorMap map_c;
    float alpha, beta;
    ElementC const* c;  ///< source and destination
    int64_t leading;    ///< from one line of contiguous elements to the next
    int32_t m, n;

    void set(double new_alpha, double new_beta, ElementC* new_c) {
      alpha = float(new_alpha);
      beta = float(new_beta);
      c = new_c;
    }
  };

  /// A map that cannot be encoded stays zero.
  template <class ProblemShape>
  static Params to_underlying_arguments(ProblemShape const& problem_shape, Arguments const& arguments, void*) {
    int const m = cute::get<0>(problem_shape), n = cute::get<1>(problem_shape);
    Params params{};
    params.leading = kRowMajor ? int64_t(cute::get<0>(arguments.dD)) : int64_t(cute::get<1>(arguments.dD));
    params.map_c = encode_map(static_cast<ElementC const*>(arguments.ptr_D), kRowMajor ? n : m, kRowMajor ? m : n, params.leading,
                              kInner, kOuter, kLineBytes);
    params.m = m;
    params.n = n;
    params.set(arguments.thread.alpha, arguments.thread.beta, arguments.ptr_D);
    return params;
  }

  CUTLASS_DEVICE static void prefetch_tma_descriptors(Params const& params) { cute::prefetch_tma_descriptor(&params.map_c); }

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
    each([&](float* some, int y, int x) { store_block(some, scale, y, x, thread, warpgroup); });
  }

  /// Before the CTA ends: shared memory must be there until it has been read.
  CUTLASS_DEVICE static void finish() { cute::tma_store_wait<0>(); }

 private:
  Params const& params_;
  TensorStorage& storage_;
  int buffer_ = 0;

  CUTLASS_DEVICE void store_block(float const* sums, float scale, int row, int column, int thread, int warpgroup) {
    float values[kSums];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kSums; ++i) values[i] = scale * sums[i];
    uint32_t const buffer = cute::cast_smem_ptr_to_uint(storage_.buffers[warpgroup][buffer_]);
    write(buffer, values, thread);
    cute::tma_store_fence();
    // Whoever passes the barrier finds the next buffer read: of the stores before this one, all but kBuffers - 2.
    if (thread == 0) cute::tma_store_wait<kBuffers - 2>();
    cutlass::arch::NamedBarrier::sync(cutlass::NumThreadsPerWarpGroup, uint32_t(warpgroup));
    if (thread == 0) {
      CUTLASS_PRAGMA_UNROLL
      for (int box = 0; box < kBoxes; ++box) {
        void const* const from = storage_.buffers[warpgroup][buffer_] + box * kBoxBytes;
        if constexpr (kRowMajor) {
          cute::SM90_TMA_STORE_2D::copy(&params_.map_c, from, column, row);
        } else {
          cute::SM90_TMA_STORE_2D::copy(&params_.map_c, from, row + box * kInner, column);
        }
      }
      cute::tma_store_arrive();
    }
    buffer_ = buffer_ + 1 == kBuffers ? 0 : buffer_ + 1;
  }

  /// A thread has, of every 8 columns, two neighbouring ones in rows `row` and `row` + 8.
  CUTLASS_DEVICE void add_source(float* sums, int row, int column, int thread) const {
    row += thread / 32 * 16 + thread % 32 / 4;
    column += thread % 4 * 2;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kSums; ++i) {
      int const y = row + i / 2 % 2 * 8, x = column + i / 4 * 8 + i % 2;
      float old = 0;
      if (y < params_.m && x < params_.n) old = float(params_.c[kRowMajor ? y * params_.leading + x : x * params_.leading + y]);
      sums[i] = params_.alpha * sums[i] + params_.beta * old;
    }
  }

  /// Into 64 x 32 elements, swizzled as TMA reads them.
  CUTLASS_DEVICE static void write(uint32_t buffer, float const* values, int thread) {
    int const warp = thread / 32, lane = thread % 32;
    if constexpr (kBytes == 2) {
      // Two runs of 8 columns at a time: four blocks of 8 x 8, the lower rows' and the upper rows', of which lane i says where the
      // (i % 8)-th line of the (i / 8)-th goes.
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
    } else {
      int const row = warp * 16 + lane / 4, column = lane % 4 * 2;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSums; i += 2) {
        int const y = row + i / 2 % 2 * 8, x = column + i / 4 * 8;
        if constexpr (kRowMajor) {
          asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(buffer + place(y, x)), "f"(values[i]), "f"(values[i + 1]) : "memory");
        } else {
          uint32_t const box = buffer + y / kInner * kBoxBytes;
          asm volatile("st.shared.f32 [%0], %1;" ::"r"(box + place(x, y % kInner)), "f"(values[i]) : "memory");
          asm volatile("st.shared.f32 [%0], %1;" ::"r"(box + place(x + 1, y % kInner)), "f"(values[i + 1]) : "memory");
        }
      }
    }
  }

  /// Byte offset in a box of element `inner` of a line: 16-byte pieces are exchanged within 4 (lines of 64 bytes) or 8 (128).
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
