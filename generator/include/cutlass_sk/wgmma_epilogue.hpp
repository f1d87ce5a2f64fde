/// c = alpha * sums + beta * c for tiles of any width, 32 columns at a time, with ordinary stores, to any address.
///
/// TMA would store whole boxes, but to hand it one takes a fence, a barrier and a thread that waits: more time than a short tile's
/// products take. Float32 sums go from registers to whole sectors of memory; 16-bit ones pass through shared memory, to become
/// lines of 64 bytes (row-major c: each warp by itself) or 128 (column-major: the warpgroup's 64 rows). Warpgroups never wait for
/// each other here. The code is short because it is there once for each 32 columns that a tile may have: sums in registers cannot
/// be indexed at run time.
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
  static constexpr int kAlignmentBytes = int(sizeof(Element_));
  static constexpr int kColumns = 32, kRows = 64;
  static constexpr int kSums = kRows * kColumns / cutlass::NumThreadsPerWarpGroup;  ///< of a thread

 private:
  static constexpr int kBytes = int(sizeof(ElementC));
  static constexpr bool kRowMajor = cute::is_static_v<decltype(cute::get<1>(StrideC{}))>;
  static constexpr bool kStaged = kBytes == 2;
  static_assert(kStaged || kBytes == 4);
  /// Of 64 x 32 staged elements: contiguous ones, and how many a thread stores at once.
  static constexpr int kInner = kRowMajor ? kColumns : kRows, kLineBytes = kInner * kBytes;
  static constexpr int kVectorBytes = kStaged ? 16 : 2 * kBytes, kVector = kVectorBytes / kBytes;
  static constexpr int kBuffers = 2, kBufferBytes = kStaged ? kRows * kColumns * kBytes : 16;

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
    float alpha, beta;
    ElementC* c;      ///< source and destination
    int64_t leading;  ///< from one line of contiguous elements to the next
    int32_t m, n;
    uint32_t alignment;  ///< bytes, a power of two up to 16, of which every line's address is a multiple

    void set(double new_alpha, double new_beta, ElementC* new_c) {
      alpha = float(new_alpha);
      beta = float(new_beta);
      c = new_c;
      uintptr_t const bits = reinterpret_cast<uintptr_t>(c) | uintptr_t(leading) * sizeof(ElementC) | 16;
      alignment = uint32_t(bits & (~bits + 1));
    }
  };

  template <class ProblemShape>
  static Params to_underlying_arguments(ProblemShape const& problem_shape, Arguments const& arguments, void*) {
    Params params{};
    params.leading = kRowMajor ? int64_t(cute::get<0>(arguments.dD)) : int64_t(cute::get<1>(arguments.dD));
    params.m = int(cute::get<0>(problem_shape));
    params.n = int(cute::get<1>(problem_shape));
    params.set(arguments.thread.alpha, arguments.thread.beta, arguments.ptr_D);
    return params;
  }

  CUTLASS_DEVICE WgmmaEpilogue(Params const& params, TensorStorage& storage) : params_(params), storage_(storage) {}

  /// Where a thread's first element of some rows and columns is, and how many rows and columns of c there are from it on.
  struct Place {
    ElementC* to;
    int rows, columns;

    CUTLASS_DEVICE Place moved(int y, int x, int64_t leading) const {
      return {to + (kRowMajor ? y * leading + x : x * leading + y), rows - y, columns - x};
    }
  };
  /// Where a thread's part of a tile goes.
  struct Target {
    Place place;
    uint32_t write, read;  ///< shared addresses in the first buffer: of the sums that it writes, and of the vectors that it reads
  };

  /// For the tile whose first element is (row, column). `warpgroup` numbers the caller's in the CTA, `row` is its own first one.
  CUTLASS_DEVICE Target target(int row, int column, int warpgroup) const {
    uint32_t const thread = thread_of_warpgroup();
    Target target{};
    if constexpr (kStaged) {
      int const line = int(line_of(thread)), inner = int(inner_of(thread));
      target.place = place_of(row + (kRowMajor ? line : inner), column + (kRowMajor ? inner : line));
      // Of two runs of 8 columns, there are four blocks of 8 x 8, the lower rows' and the upper rows' of each; lane i says where
      // the (i % 8)-th line of the (i / 8)-th goes.
      uint32_t const lane = thread % 32, rows = thread / 32 * 16 + lane / 8 % 2 * 8, columns = lane / 16 * 8;
      uint32_t const first = cute::cast_smem_ptr_to_uint(storage_.buffers[warpgroup][0]);
      target.write = first + (kRowMajor ? offset(rows + lane % 8, columns) : offset(columns + lane % 8, rows));
      target.read = first + offset(line_of(thread), inner_of(thread));
      asm volatile("" : "+r"(target.write), "+r"(target.read));
    } else {
      target.place = sums_of(thread, row, column);
    }
    return target;
  }

  /// Called by a warpgroup with the tile's sums, `widest` columns of them, for those of the first `subtiles` runs of 32 columns
  /// that are `mine`. `row`, `column` and `warpgroup` are those of `target`.
  template <int widest, class Mine>
  CUTLASS_DEVICE void store(Target const& target, float* sums, int row, int column, int subtiles, Mine const& mine, int warpgroup) {
    auto const each = [&](auto const& use) {
      CUTLASS_PRAGMA_UNROLL
      for (int subtile = 0; subtile < widest / kColumns; ++subtile) {
        if (subtile >= subtiles || !mine(subtile)) continue;
        CUTLASS_PRAGMA_UNROLL
        for (int block = 0; block < blocks_m; ++block) {
          use(sums + block * (widest / 2) + subtile * kSums, block * between, subtile * kColumns);
        }
      }
    };
    float scale = params_.alpha;
    if (params_.beta != 0) {  // apart, so that the way without it is short
      Place const place = sums_of(thread_of_warpgroup(), row, column);
      each([&](float* some, int y, int x) { add_source(some, place.moved(y, x, params_.leading)); });
      scale = 1;
    }
    each([&](float* some, int y, int x) {
      Place const place = target.place.moved(y, x, params_.leading);
      if constexpr (kStaged) {
        store_staged(some, scale, place, target, uint32_t(warpgroup));
      } else {
        store_directly(some, scale, place);
      }
    });
  }

 private:
  Params const& params_;
  TensorStorage& storage_;
  uint32_t buffer_ = 0;  ///< in bytes, the staging buffer that is next

  CUTLASS_DEVICE static uint32_t thread_of_warpgroup() {
    uint32_t thread = threadIdx.x % cutlass::NumThreadsPerWarpGroup;
    asm volatile("" : "+r"(thread));  // lest what follows is computed, and kept in registers, before the main loop
    return thread;
  }

  CUTLASS_DEVICE Place place_of(int row, int column) const {
    Place place{params_.c + (kRowMajor ? row * params_.leading + column : column * params_.leading + row), params_.m - row,
                params_.n - column};
    // Worked out here and once: the compiler would rather do it again for each 32 columns.
    asm volatile("" : "+l"(place.to), "+r"(place.rows), "+r"(place.columns));
    return place;
  }

  /// Of a thread's sums: of every 8 columns, it has two neighbouring ones in its first row and in the 8th after that.
  CUTLASS_DEVICE Place sums_of(uint32_t thread, int row, int column) const {
    return place_of(row + int(thread / 32 * 16 + thread % 32 / 4), column + int(thread % 4 * 2));
  }
  CUTLASS_DEVICE static constexpr int row_of(int i) { return i / 2 % 2 * 8; }
  CUTLASS_DEVICE static constexpr int column_of(int i) { return i / 4 * 8 + i % 2; }

  CUTLASS_DEVICE void add_source(float* sums, Place const& place) const {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kSums; ++i) {
      Place const here = place.moved(row_of(i), column_of(i), params_.leading);
      float old = 0;
      if (here.rows > 0 && here.columns > 0) old = float(*here.to);
      sums[i] = params_.alpha * sums[i] + params_.beta * old;
    }
  }

  /// Four threads have 32 bytes of a row, eight have as much of a column.
  CUTLASS_DEVICE void store_directly(float const* sums, float scale, Place const& place) const {
    if (kRowMajor && params_.alignment < kVectorBytes) {  // the same for all
      store_exchanged(sums, scale, place);
      return;
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kSums; i += 2) {
      Place const here = place.moved(row_of(i), column_of(i), params_.leading);
      float2 const pair = make_float2(scale * sums[i], scale * sums[i + 1]);
      bool const first = here.rows > 0 && here.columns > 0, second = here.rows > 0 && here.columns > 1;
      if (kRowMajor && second) {
        put(here.to, pair);
      } else {
        if (first) put(here.to, pair.x);
        if (second) put(here.moved(0, 1, params_.leading).to, pair.y);
      }
    }
  }

  /// Rows that start anywhere take one sum at a time, which fills whole sectors only where neighbouring threads have neighbouring
  /// columns: lanes first exchange sums across four rows, after which sixteen of them have 64 bytes of a row.
  CUTLASS_DEVICE void store_exchanged(float const* sums, float scale, Place const& place) const {
    uint32_t const lane = thread_of_warpgroup() % 32;
    bool const odd_row = lane / 4 % 2, upper_pair = lane / 8 % 2;
    Place const start = place.moved(-int(lane / 4 % 4), 8 * upper_pair + odd_row, params_.leading);
    CUTLASS_PRAGMA_UNROLL
    for (int half = 0; half < 2; ++half) {
      float own[4][2];  // of each run of 8 columns; a pair of columns, then of rows
      CUTLASS_PRAGMA_UNROLL
      for (int run = 0; run < 4; ++run) {
        own[run][0] = scale * sums[4 * run + 2 * half], own[run][1] = scale * sums[4 * run + 2 * half + 1];
        exchange(own[run][0], own[run][1], odd_row, 4);
      }
      CUTLASS_PRAGMA_UNROLL
      for (int run = 0; run < 4; run += 2) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 2; ++i) {
          exchange(own[run][i], own[run + 1][i], upper_pair, 8);
          CUTLASS_PRAGMA_UNROLL
          for (int pair = 0; pair < 2; ++pair) {
            Place const here = start.moved(8 * half + 2 * pair + i, 8 * run, params_.leading);
            if (here.rows > 0 && here.columns > 0) put(here.to, own[run + pair][i]);
          }
        }
      }
    }
  }

  /// Of a lane and the one `distance` on: the first keeps its `low` and gets the other's as its `high`, the other likewise.
  CUTLASS_DEVICE static void exchange(float& low, float& high, bool second, int distance) {
    float const got = __shfl_xor_sync(0xffffffffu, second ? low : high, distance);
    (second ? low : high) = got;
  }

  static constexpr int kVectorsOfLine = kInner / kVector;
  /// Lines that the threads which stage together read at once, and how often.
  static constexpr int kAtOnce = (kRowMajor ? cutlass::NumThreadsPerWarp : cutlass::NumThreadsPerWarpGroup) / kVectorsOfLine;
  static constexpr int kTimes = (kRowMajor ? 16 : kColumns) / kAtOnce;

  /// Of the staged vectors that a thread stores: it has the kAtOnce-th lines from its first one on.
  CUTLASS_DEVICE static uint32_t line_of(uint32_t thread) {
    return kRowMajor ? thread / 32 * 16 + thread % 32 / kVectorsOfLine : thread / kVectorsOfLine;
  }
  CUTLASS_DEVICE static uint32_t inner_of(uint32_t thread) { return thread % kVectorsOfLine * kVector; }

  /// Byte offset of element `inner` of a line. 16-byte pieces are exchanged within four (lines of 64 bytes) or eight (128), so that
  /// the same piece of eight lines is in all banks; for lines 8 apart the exchange is the same.
  CUTLASS_DEVICE static uint32_t offset(uint32_t line, uint32_t inner) {
    uint32_t const plain = line * kLineBytes + inner * kBytes;
    return plain ^ ((plain >> 3) & (kLineBytes == 128 ? 0x70 : 0x30));
  }
  /// Where a thread writes the third and fourth run of 8 columns, if it writes the first two at `address`.
  CUTLASS_DEVICE static uint32_t later(uint32_t address) { return kRowMajor ? address ^ 32 : address + 16 * kLineBytes; }

  CUTLASS_DEVICE void store_staged(float const* sums, float scale, Place const& place, Target const& target, uint32_t warpgroup) {
    uint32_t packed[kSums / 2];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kSums / 2; ++i) packed[i] = pack(scale * sums[2 * i], scale * sums[2 * i + 1]);
    uint32_t const buffer = buffer_, write = target.write + buffer;
    buffer_ = kBufferBytes - buffer_;
    store_matrices(write, packed);
    store_matrices(later(write), packed + 4);
    // Whoever is past this has read the other buffer.
    if constexpr (kRowMajor) {
      __syncwarp();
    } else {
      cutlass::arch::NamedBarrier::sync(cutlass::NumThreadsPerWarpGroup, warpgroup);
    }
    int const left = kRowMajor ? place.columns : place.rows;
    // The same for all that stage together.
    if (params_.alignment >= kVectorBytes && left % kVector == 0) {
      store_vectors(place, left, target.read + buffer);
    } else if (params_.alignment >= 4 && left % 2 == 0) {
      store_pieces<uint32_t>(place, left, buffer, warpgroup);
    } else {
      store_pieces<uint16_t>(place, left, buffer, warpgroup);
    }
  }

  CUTLASS_DEVICE void store_vectors(Place const& place, int left, uint32_t read) const {
    int const lines = kRowMajor ? place.rows : place.columns;
    if (left <= 0) return;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kTimes; ++i) {
      uint4 vector;
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(vector.x), "=r"(vector.y), "=r"(vector.z), "=r"(vector.w)
                   : "r"(read + i * kAtOnce * kLineBytes)
                   : "memory");
      if (lines > i * kAtOnce) put(place.to + i * kAtOnce * params_.leading, vector);
    }
  }

  /// Lines that start anywhere, or end within a vector: neighbouring threads store neighbouring elements, or pairs of them. Warps
  /// are few and each waits for its own instructions: these are unrolled, with addresses that do not wait for each other.
  template <class Piece>
  CUTLASS_DEVICE void store_pieces(Place const& place, int left, uint32_t buffer, uint32_t warpgroup) const {
    constexpr int kTogether = kRowMajor ? cutlass::NumThreadsPerWarp : cutlass::NumThreadsPerWarpGroup;
    constexpr int kElements = int(sizeof(Piece)) / kBytes, kOfLine = kInner / kElements;
    constexpr int kLines = (kRowMajor ? 16 : kColumns), kLinesAtOnce = kTogether / kOfLine, kTimes = kLines / kLinesAtOnce;
    constexpr int kBatch = kTimes < 8 ? kTimes : 8, kChains = 4;
    static_assert(kTimes % kBatch == 0 && kBatch % kChains == 0);
    uint32_t const thread = thread_of_warpgroup(), inner = thread % kOfLine * kElements;
    // The thread's vector is at (line_of, inner_of) of what it stages with others; its first piece here is at (line, inner).
    uint32_t const line = kRowMajor ? thread / 32 * 16 + thread % 32 / kOfLine : thread / kOfLine;
    int64_t const lines_on = int(line) - int(line_of(thread)), on = int(inner) - int(inner_of(thread));
    int64_t const step = kLinesAtOnce * params_.leading;
    int const lines = left > on ? (kRowMajor ? place.rows : place.columns) - int(lines_on) : 0;
    ElementC* to[kChains] = {place.to + lines_on * params_.leading + on};
    CUTLASS_PRAGMA_UNROLL
    for (int i = 1; i < kChains; ++i) to[i] = to[i - 1] + step;
    // `line` and what it adds to are apart in its bits, so that exchanges of 16-byte pieces add up.
    uint32_t const first = cute::cast_smem_ptr_to_uint(storage_.buffers[warpgroup][0]) + buffer + offset(line, inner);
    CUTLASS_PRAGMA_UNROLL
    for (int begin = 0; begin < kTimes; begin += kBatch) {
      Piece pieces[kBatch];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        uint32_t const from = offset(uint32_t(begin + i) * kLinesAtOnce, 0), exchanged = from % kLineBytes;
        get((first ^ exchanged) + (from - exchanged), pieces[i]);
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        if (lines > (begin + i) * kLinesAtOnce) put(to[i % kChains], pieces[i]);
        to[i % kChains] += kChains * step;
      }
    }
  }

  /// From shared memory, in the order of the barriers.
  CUTLASS_DEVICE static void get(uint32_t from, uint32_t& v) {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  }
  CUTLASS_DEVICE static void get(uint32_t from, uint16_t& v) {
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(from) : "memory");
  }

  /// To global memory, as the compiler cannot know.
  CUTLASS_DEVICE static void put(void* to, uint4 v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
  }
  CUTLASS_DEVICE static void put(void* to, float2 v) {
    asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(v.x), "f"(v.y) : "memory");
  }
  CUTLASS_DEVICE static void put(void* to, float v) { asm volatile("st.global.f32 [%0], %1;" ::"l"(to), "f"(v) : "memory"); }
  CUTLASS_DEVICE static void put(void* to, uint32_t v) { asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory"); }
  CUTLASS_DEVICE static void put(void* to, uint16_t v) { asm volatile("st.global.u16 [%0], %1;" ::"l"(to), "h"(v) : "memory"); }

  CUTLASS_DEVICE static void store_matrices(uint32_t to, uint32_t const* packed) {
    if constexpr (kRowMajor) {
      asm volatile("stmatrix.sync.aligned.x4.m8n8.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(packed[0]), "r"(packed[1]),
                   "r"(packed[2]), "r"(packed[3])
                   : "memory");
    } else {
      asm volatile("stmatrix.sync.aligned.x4.trans.m8n8.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(packed[0]),
                   "r"(packed[1]), "r"(packed[2]), "r"(packed[3])
                   : "memory");
    }
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
