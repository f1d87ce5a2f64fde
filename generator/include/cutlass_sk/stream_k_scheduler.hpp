/// A CUTLASS 3.x tile scheduler that executes a plan made elsewhere: nothing is decided on the device, or twice.
///
/// Against CUTLASS's own Stream-K scheduler: 32-bit arithmetic throughout; every schedule that StreamKSchedule can express; one
/// partial slot and one flag for each unit, flags in a region of their own and reset by whoever read them, so that no memset is
/// needed; partials added as a tree; an early trigger for programmatic dependent launch.
#pragma once
#include "cutlass/arch/barrier.h"
#include "cutlass/arch/grid_dependency_control.h"
#include "cutlass/fast_math.h"
#include "cutlass/gemm/kernel/tile_scheduler.hpp"
#include "cutlass_sk/stream_k_schedule.h"

namespace cutlass_sk {

/// Scheduler tag: selects StreamKTileScheduler in cutlass::gemm::kernel::GemmUniversal.
struct PlannedStreamK {};

template <class TileShape, class ClusterShape>
class StreamKTileScheduler {
 public:
  using Schedule = StreamKSchedule<cutlass::FastDivmod>;

  // What the kernel layer asks of every scheduler; this one is static and needs no pipelines.
  static constexpr bool IsDynamicPersistent = false;
  using Pipeline = cutlass::PipelineEmpty;
  using PipelineStorage = typename Pipeline::SharedStorage;
  using ThrottlePipeline = cutlass::PipelineEmpty;
  using ThrottlePipelineStorage = typename ThrottlePipeline::SharedStorage;
  struct CLCResponse {};
  class SharedStorage {
   public:
    CUTLASS_DEVICE PipelineStorage pipeline() { return {}; }
    CUTLASS_DEVICE ThrottlePipelineStorage throttle_pipeline() { return {}; }
    CUTLASS_DEVICE CLCResponse* data() { return nullptr; }
  };

  static constexpr int kClusterM = cute::size<0>(ClusterShape{});
  static constexpr int kClusterN = cute::size<1>(ClusterShape{});
  static constexpr int kClusterSize = kClusterM * kClusterN;
  static constexpr int kTileElements = cute::size<0>(TileShape{}) * cute::size<1>(TileShape{});

  struct Arguments {
    Schedule schedule;
    void* partials = nullptr;       ///< kClusterSize tiles of accumulators for each unit
    uint32_t* barriers = nullptr;   ///< kClusterSize * (consumer warpgroups) flags for each unit; zero between launches
    bool nondeterministic = false;  ///< add partials as they arrive
  };
  using Params = Arguments;

  struct WorkTileInfo {
    int32_t M_idx = 0, N_idx = 0, L_idx = 0;
    Segment segment;

    CUTLASS_HOST_DEVICE bool is_valid() const { return segment.is_valid(); }
    CUTLASS_HOST_DEVICE int32_t reduction_subtile_idx() const { return -1; }
  };

  template <class ProblemShape>
  static Params to_underlying_arguments(ProblemShape, TileShape, ClusterShape, cutlass::KernelHardwareInfo const&,
                                        Arguments const& args, void*, uint32_t = 1, uint32_t = 1) {
    return args;
  }
  static bool can_implement(Arguments const&) { return true; }

  /// The workspace is the caller's: partials and barriers come in with the arguments.
  template <class ProblemShape, class ElementAccumulator>
  static size_t get_workspace_size(Arguments const&, ProblemShape, cutlass::KernelHardwareInfo const&, uint32_t, uint32_t = 1,
                                   uint32_t = 1) {
    return 0;
  }

  /// Every thread constructs its scheduler right after the kernel's prologue: the place to let the next grid start its own. All
  /// that this grid reads or writes comes after the load warps' wait for the grid before it.
  CUTLASS_DEVICE explicit StreamKTileScheduler(Params const& params) : params_(params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    static_assert(cutlass::arch::IsGdcGloballyEnabled, "without griddepcontrol no load would wait for the grid before this one");
#endif
    cutlass::arch::launch_dependent_grids();
  }

  CUTLASS_DEVICE WorkTileInfo initial_work_tile_info(ClusterShape) const { return located(schedule().begin(int32_t(worker()))); }

  CUTLASS_DEVICE auto fetch_next_work(WorkTileInfo work) const {
    return cute::make_tuple(located(schedule().next(work.segment)), true);
  }
  template <class TileSchedulerPipeline, class TileSchedulerPipelineState>
  CUTLASS_DEVICE auto fetch_next_work(WorkTileInfo work, TileSchedulerPipeline&, TileSchedulerPipelineState) const {
    return fetch_next_work(work);
  }
  CUTLASS_DEVICE bool is_last_tile(WorkTileInfo work) const { return !schedule().next(work.segment).is_valid(); }

  CUTLASS_HOST_DEVICE static bool valid_warpgroup_in_work_tile(WorkTileInfo const&) { return true; }
  CUTLASS_HOST_DEVICE static bool requires_separate_reduction(Params const&) { return false; }
  CUTLASS_HOST_DEVICE static bool compute_epilogue(WorkTileInfo const& work, Params const& params) {
    return params.schedule.is_finisher(work.segment);
  }
  template <class ProblemShape>
  CUTLASS_HOST_DEVICE static uint32_t get_work_k_tile_count(WorkTileInfo const& work, ProblemShape, TileShape) {
    return uint32_t(work.segment.k_end - work.segment.k_begin);
  }
  CUTLASS_HOST_DEVICE static uint32_t get_work_k_tile_start(WorkTileInfo const& work) { return uint32_t(work.segment.k_begin); }

  /// Called by every consumer thread with its accumulators: adds the partial sums of the unit's children, then, unless the unit
  /// finishes the tile, stores the sums for its parent. Warpgroups work apart: each has its part of the slot and its own flag.
  template <class Accumulators>
  CUTLASS_DEVICE static void fixup(Params const& params, WorkTileInfo const& work, Accumulators& accumulators, uint32_t warpgroups,
                                   uint32_t warpgroup) {
    Segment const& segment = work.segment;
    Schedule const& schedule = params.schedule;
    if (!schedule.needs_fixup(segment)) return;

    constexpr int kThreads = cutlass::NumThreadsPerWarpGroup;
    constexpr int kVectors = int(cute::size(Accumulators{})) / 4;
    static_assert(sizeof(typename Accumulators::value_type) == 4 && cute::size(Accumulators{}) % 4 == 0);
    uint32_t const thread = threadIdx.x % kThreads;
    uint32_t const lane = threadIdx.x % cutlass::NumThreadsPerWarp;
    uint32_t const rank = cute::block_rank_in_cluster();
    auto const slot = [&](int32_t unit) {
      size_t const tile = size_t(unit) * kClusterSize + rank;
      return static_cast<float4*>(params.partials) + (tile * warpgroups + warpgroup) * (kVectors * kThreads) + thread;
    };
    auto const flag = [&](int32_t unit) {
      return params.barriers + (uint32_t(unit) * kClusterSize + rank) * warpgroups + warpgroup;
    };
    auto const synchronise = [&] {
      using cutlass::arch::ReservedNamedBarriers;
      auto const barrier = ReservedNamedBarriers(uint32_t(ReservedNamedBarriers::StreamkBarrier0) + warpgroup);
      cutlass::arch::NamedBarrier::sync(kThreads, barrier);
    };
    float* const sums = reinterpret_cast<float*>(accumulators.data());
    auto const add = [&](int32_t unit) {
      float4 const* const partial = slot(unit);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        float4 const v = __ldcg(partial + i * kThreads);
        sums[4 * i] += v.x;
        sums[4 * i + 1] += v.y;
        sums[4 * i + 2] += v.z;
        sums[4 * i + 3] += v.w;
      }
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
      float4* const partial = slot(segment.unit);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        __stcg(partial + i * kThreads, make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
      }
      __threadfence();
      synchronise();
      if (thread == 0) release(flag(segment.unit));
    }
  }

 private:
  Params const& params_;

  CUTLASS_DEVICE Schedule const& schedule() const { return params_.schedule; }
  /// Linear cluster index: the grid is launched as (clusters * cluster_m, cluster_n).
  CUTLASS_DEVICE static uint32_t worker() { return blockIdx.x / kClusterM; }

  CUTLASS_DEVICE WorkTileInfo located(Segment const& segment) const {
    WorkTileInfo work;
    work.segment = segment;
    schedule().coordinates(segment.work_tile, work.M_idx, work.N_idx);
    dim3 const cta = cute::block_id_in_cluster();
    work.M_idx = work.M_idx * kClusterM + int32_t(cta.x);
    work.N_idx = work.N_idx * kClusterN + int32_t(cta.y);
    return work;
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

namespace cutlass::gemm::kernel::detail {

template <class ArchTag, class TileShape, class ClusterShape, uint32_t SchedulerPipelineStageCount>
struct TileSchedulerSelector<cutlass_sk::PlannedStreamK, ArchTag, TileShape, ClusterShape, SchedulerPipelineStageCount> {
  using Scheduler = cutlass_sk::StreamKTileScheduler<TileShape, ClusterShape>;
};

}  // namespace cutlass::gemm::kernel::detail
