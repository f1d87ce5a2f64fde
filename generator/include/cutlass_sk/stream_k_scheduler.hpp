/// Executes a plan made elsewhere, on the device: nothing is decided here, or twice.
///
/// Against CUTLASS's own Stream-K scheduler: 32-bit arithmetic throughout; every schedule that StreamKSchedule can express; one
/// partial slot and one flag for each unit, flags in a region of their own and reset by whoever read them, so that no memset is
/// needed; partials added as a tree.
#pragma once
#include "cutlass/arch/barrier.h"
#include "cutlass/fast_math.h"
#include "cutlass_sk/stream_k_schedule.h"

namespace cutlass_sk {

/// 16 bytes of sums, as they go to and come from the workspace.
template <class Element>
struct PartialVector;

template <>
struct PartialVector<float> {
  using type = float4;
  CUTLASS_DEVICE static void add(float* sums, float4 const& v) {
    sums[0] += v.x;
    sums[1] += v.y;
    sums[2] += v.z;
    sums[3] += v.w;
  }
  CUTLASS_DEVICE static float4 pack(float const* sums) { return make_float4(sums[0], sums[1], sums[2], sums[3]); }
};

template <>
struct PartialVector<double> {
  using type = double2;
  CUTLASS_DEVICE static void add(double* sums, double2 const& v) {
    sums[0] += v.x;
    sums[1] += v.y;
  }
  CUTLASS_DEVICE static double2 pack(double const* sums) { return make_double2(sums[0], sums[1]); }
};

template <class TileShape, class ClusterShape>
class StreamKTileScheduler {
 public:
  using Schedule = StreamKSchedule<cutlass::FastDivmod>;

  static constexpr int kClusterM = cute::size<0>(ClusterShape{});
  static constexpr int kClusterN = cute::size<1>(ClusterShape{});
  static constexpr int kClusterSize = kClusterM * kClusterN;
  static constexpr int kTileElements = cute::size<0>(TileShape{}) * cute::size<1>(TileShape{});

  struct Params {
    Schedule schedule;
    void* partials = nullptr;       ///< kClusterSize tiles of accumulators for each unit
    uint32_t* barriers = nullptr;   ///< kClusterSize * (warpgroups a tile) flags for each unit; zero between launches
    bool nondeterministic = false;  ///< add partials as they arrive
  };

  /// A segment, and where this CTA's tile of it lies.
  struct Work {
    int32_t tile_m = 0, tile_n = 0;
    Segment segment;

    CUTLASS_DEVICE bool is_valid() const { return segment.is_valid(); }
    CUTLASS_DEVICE int32_t k_begin() const { return segment.k_begin; }
    CUTLASS_DEVICE int32_t k_tiles() const { return segment.k_end - segment.k_begin; }
    CUTLASS_DEVICE auto coordinates() const { return cute::make_coord(tile_m, tile_n, cute::_, 0); }
    /// Has the compiler work it all out here, not where it is used.
    CUTLASS_DEVICE void settle() {
      asm volatile(""
                   : "+r"(tile_m), "+r"(tile_n), "+r"(segment.position), "+r"(segment.unit), "+r"(segment.work_tile),
                     "+r"(segment.k_begin), "+r"(segment.k_end), "+r"(segment.remaining));
    }
  };

  CUTLASS_DEVICE explicit StreamKTileScheduler(Params const& params) : params_(params) {}

  CUTLASS_DEVICE Work first() const { return located(schedule().begin(int32_t(worker()))); }
  CUTLASS_DEVICE Work next(Work const& work) const { return located(schedule().next(work.segment)); }
  /// Whether the segment's sums, once added up, are the tile's, to be stored by the epilogue. In a cluster every peer has a part.
  CUTLASS_DEVICE bool finishes(Work const& work) const { return cluster_peers() > 1 || schedule().is_finisher(work.segment); }
  CUTLASS_DEVICE int32_t cluster_peers() const { return schedule().cluster_peers(); }

  /// The named barrier of a consumer warpgroup for its own fix-up.
  CUTLASS_DEVICE static uint32_t fixup_barrier(uint32_t consumer) {
    return uint32_t(cutlass::arch::ReservedNamedBarriers::StreamkBarrier0) + consumer;
  }

  /// Called by every consumer thread with its accumulators: adds the partial sums of the unit's children, then, unless the unit
  /// finishes the tile, stores the sums for its parent. The `warpgroups` of a tile work apart: each has its part of the slot and
  /// its own flag. `consumer` numbers the consumer warpgroups of the CTA. Of each 64 rows' sums, `subtiles` runs, the first `used`
  /// ones are looked at.
  template <int subtiles, class Accumulators>
  CUTLASS_DEVICE void fixup(Work const& work, Accumulators& accumulators, int32_t used, uint32_t warpgroups, uint32_t warpgroup,
                            uint32_t consumer) const {
    Segment const& segment = work.segment;
    Params const& params = params_;
    Schedule const& schedule = params.schedule;
    if (!schedule.needs_fixup(segment)) return;

    constexpr int kThreads = cutlass::NumThreadsPerWarpGroup;
    using Element = typename Accumulators::value_type;
    using Packed = PartialVector<Element>;
    using Vector = typename Packed::type;
    constexpr int kWidth = int(sizeof(Vector) / sizeof(Element));
    constexpr int kVectors = int(cute::size(Accumulators{})) / kWidth;
    static_assert(cute::size(Accumulators{}) % kWidth == 0);
    uint32_t const thread = threadIdx.x % kThreads;
    uint32_t const lane = threadIdx.x % cutlass::NumThreadsPerWarp;
    uint32_t const rank = kClusterSize > 1 ? cute::block_rank_in_cluster() : 0;
    auto const slot = [&](int32_t unit) {
      size_t const tile = size_t(unit) * kClusterSize + rank;
      return static_cast<Vector*>(params.partials) + (tile * warpgroups + warpgroup) * (kVectors * kThreads) + thread;
    };
    auto const flag = [&](int32_t unit) {
      return params.barriers + (uint32_t(unit) * kClusterSize + rank) * warpgroups + warpgroup;
    };
    auto const synchronise = [&] {
      cutlass::arch::NamedBarrier::sync(kThreads, cutlass::arch::ReservedNamedBarriers(fixup_barrier(consumer)));
    };
    Element* const sums = accumulators.data();
    // A tile's sums: of each 64 rows `subtiles` runs of vectors, of which the first `used` are its own.
    constexpr int kBlocks = subtiles == 1 ? 1 : int(cute::size<1>(typename Accumulators::layout_type{}));
    constexpr int kRun = kVectors / (kBlocks * subtiles);
    static_assert(kVectors % (kBlocks * subtiles) == 0);
    auto const add = [&](int32_t unit) {
      Vector const* const partial = slot(unit);
      in_batches<subtiles>(used, [&](auto first, auto count) {
        constexpr int kAtOnce = 16, kCount = decltype(count)::value * kRun;
        CUTLASS_PRAGMA_UNROLL
        for (int block = 0; block < kBlocks; ++block) {
          CUTLASS_PRAGMA_UNROLL
          for (int begin = 0; begin < kCount; begin += kAtOnce) {
            int const from = (block * subtiles + first) * kRun + begin;
            Vector batch[kAtOnce];
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < kAtOnce && begin + i < kCount; ++i) batch[i] = __ldcg(partial + (from + i) * kThreads);
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < kAtOnce && begin + i < kCount; ++i) Packed::add(sums + kWidth * (from + i), batch[i]);
          }
        }
      });
    };

    // Lane n looks after the n-th child; every warp of the warpgroup does the same.
    int32_t const child = schedule.child(segment, int32_t(lane));
    uint32_t pending = __ballot_sync(0xffffffffu, child >= 0);
    bool const has_children = pending != 0;
    while (pending != 0) {
      uint32_t ready = pending & (~pending + 1);  // in order: the lowest one left, waited for
      if (params.nondeterministic) {
        ready = __ballot_sync(0xffffffffu, (pending >> lane & 1) != 0 && acquire(flag(child)) != 0);
      } else if (lane == uint32_t(__ffs(int(ready)) - 1)) {
        while (acquire(flag(child)) == 0) {
        }
      }
      __syncwarp();
      pending &= ~ready;
      for (; ready != 0; ready &= ready - 1) add(__shfl_sync(0xffffffffu, child, __ffs(int(ready)) - 1));
    }
    if (has_children) {
      // No warp may still be polling when the flags go back to zero for the next launch.
      synchronise();
      if (thread == lane && child >= 0) clear(flag(child));
    }
    if (!schedule.is_finisher(segment)) {
      Vector* const partial = slot(segment.unit);
      in_batches<subtiles>(used, [&](auto first, auto count) {
        CUTLASS_PRAGMA_UNROLL
        for (int block = 0; block < kBlocks; ++block) {
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < decltype(count)::value * kRun; ++i) {
            int const at = (block * subtiles + first) * kRun + i;
            __stcg(partial + at * kThreads, Packed::pack(sums + kWidth * at));
          }
        }
      });
      synchronise();
      if (thread == 0) release(flag(segment.unit));  // all that the warpgroup wrote before it synchronised
    }
  }

 private:
  Params const& params_;

  CUTLASS_DEVICE Schedule const& schedule() const { return params_.schedule; }
  /// Linear cluster index: the grid is launched as (clusters * cluster_m, cluster_n).
  CUTLASS_DEVICE static uint32_t worker() { return blockIdx.x / kClusterM; }

  CUTLASS_DEVICE Work located(Segment const& segment) const {
    Work work;
    work.segment = segment;
    if (!segment.is_valid()) return work;
    schedule().coordinates(segment.work_tile, work.tile_m, work.tile_n);
    if constexpr (kClusterSize > 1) {
      dim3 const cta = cute::block_id_in_cluster();
      work.tile_m = work.tile_m * kClusterM + int32_t(cta.x);
      work.tile_n = work.tile_n * kClusterN + int32_t(cta.y);
    }
    return work;
  }

  /// Calls `use` for runs [0, used) of `subtiles`, with (first, count) known at compile time: four at a time, then two, then one.
  template <int subtiles, class Use>
  CUTLASS_DEVICE static void in_batches(int32_t used, Use const& use) {
    static_assert(subtiles <= 8);
    if constexpr (subtiles == 1) {
      use(cute::Int<0>{}, cute::Int<1>{});
    } else {
      if constexpr (subtiles == 8) {
        if (used == 8) {
          use(cute::Int<0>{}, cute::Int<4>{});
          use(cute::Int<4>{}, cute::Int<4>{});
          return;
        }
      }
      if constexpr (subtiles >= 4) {
        if (used >= 4) {
          use(cute::Int<0>{}, cute::Int<4>{});
          in_batches_from<subtiles, 4>(used, use);
          return;
        }
      }
      in_batches_from<subtiles, 0>(used, use);
    }
  }
  template <int subtiles, int first, class Use>
  CUTLASS_DEVICE static void in_batches_from(int32_t used, Use const& use) {
    if constexpr (first + 2 <= subtiles) {
      if (used & 2) {
        use(cute::Int<first>{}, cute::Int<2>{});
        if constexpr (first + 3 <= subtiles) {
          if (used & 1) use(cute::Int<first + 2>{}, cute::Int<1>{});
        }
        return;
      }
    }
    if constexpr (first + 1 <= subtiles) {
      if (used & 1) use(cute::Int<first>{}, cute::Int<1>{});
    }
  }

  /// Publishes everything this thread has seen written, itself or through a barrier.
  CUTLASS_DEVICE static void release(uint32_t* flag) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(1u) : "memory");
  }
  CUTLASS_DEVICE static void clear(uint32_t* flag) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(0u) : "memory");
  }
  CUTLASS_DEVICE static uint32_t acquire(uint32_t const* flag) {
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
  }
};

}  // namespace cutlass_sk
