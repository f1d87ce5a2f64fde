/// The kernel layer: one producer warpgroup feeds consumer warpgroups through a main loop, along the segments of a plan.
///
/// CUTLASS's own layers know Stream-K for two consumer warpgroups that share a tile alone. This one takes any number of them for a
/// tile (one: tiles of 64 rows), and lets two of them, each with a tile of its own, take turns (ping-pong): the epilogue or fix-up
/// of one segment runs beside the main loop of the next. The schedule is the same for all.
#pragma once
#include "cutlass/arch/grid_dependency_control.h"
#include "cutlass/arch/reg_reconfig.h"
#include "cutlass/gemm/dispatch_policy.hpp"
#include "cutlass/gemm/gemm.h"
#include "cutlass/kernel_hardware_info.hpp"
#include "cutlass/pipeline/pipeline.hpp"
#include "cutlass_sk/cluster_fixup.hpp"
#include "cutlass_sk/stream_k_scheduler.hpp"

namespace cutlass_sk {

/// concurrent_tiles: 2 for ping-pong, else 1. ctas_per_sm: how many CTAs must fit on an SM (of this launch and the next).
template <int concurrent_tiles, int ctas_per_sm>
struct KernelPolicy {
  static constexpr int kConcurrentTiles = concurrent_tiles;
  static constexpr int kCtasPerSm = ctas_per_sm;
};

/// Whether an epilogue takes a tile by columns, so that a tile may be of several widths and shared by several CTAs.
template <class Epilogue, class = void>
constexpr bool kByColumns = false;
template <class Epilogue>
constexpr bool kByColumns<Epilogue, cute::void_t<decltype(Epilogue::kColumns)>> = true;

template <class ProblemShape_, class CollectiveMainloop_, class CollectiveEpilogue_, class Policy>
class StreamKGemm {
 public:
  using ProblemShape = ProblemShape_;
  using CollectiveMainloop = CollectiveMainloop_;
  using CollectiveEpilogue = CollectiveEpilogue_;
  using DispatchPolicy = typename CollectiveMainloop::DispatchPolicy;
  using TileShape = typename CollectiveMainloop::TileShape;
  using TiledMma = typename CollectiveMainloop::TiledMma;
  using ClusterShape = typename DispatchPolicy::ClusterShape;
  using ElementA = typename CollectiveMainloop::ElementA;
  using StrideA = typename CollectiveMainloop::StrideA;
  using ElementB = typename CollectiveMainloop::ElementB;
  using StrideB = typename CollectiveMainloop::StrideB;
  using ElementAccumulator = typename TiledMma::ValTypeC;
  using ElementC = typename CollectiveEpilogue::ElementC;
  using StrideC = typename CollectiveEpilogue::StrideC;
  using StrideD = typename CollectiveEpilogue::StrideD;
  using TileScheduler = StreamKTileScheduler<TileShape, ClusterShape>;
  using Work = typename TileScheduler::Work;

  static constexpr int kWarpGroup = cutlass::NumThreadsPerWarpGroup;
  static constexpr int kTileThreads = int(cute::size(TiledMma{}));
  static constexpr int kTileWarpGroups = kTileThreads / kWarpGroup;  ///< consumer warpgroups that share a tile
  static constexpr bool kPingPong = Policy::kConcurrentTiles == 2;
  static_assert(Policy::kConcurrentTiles == 1 || (kPingPong && kTileWarpGroups == 1), "ping-pong is for one warpgroup a tile");
  static constexpr int kConsumerWarpGroups = kTileWarpGroups * Policy::kConcurrentTiles;
  static constexpr uint32_t MaxThreadsPerBlock = kWarpGroup * (1 + kConsumerWarpGroups);
  static constexpr uint32_t MinBlocksPerMultiprocessor = Policy::kCtasPerSm;

  /// Registers: what the launch gives every thread is dealt out anew, few to the producers and the rest to the consumers.
  static constexpr int kRegisterFile = 65536, kMaxRegisters = 240;
  static constexpr int kLaunchRegisters = kRegisterFile / int(MaxThreadsPerBlock * MinBlocksPerMultiprocessor) / 8 * 8;
  static constexpr bool kDealsRegisters = kLaunchRegisters < 255;
  static constexpr int kAccumulatorRegisters =
      int(cute::size<0>(TileShape{}) * cute::size<1>(TileShape{})) / kTileThreads * int(sizeof(ElementAccumulator)) / 4;
  static constexpr int kProducerRegisters = kAccumulatorRegisters >= 208 ? 24 : 40;
  static constexpr int kShare = (kLaunchRegisters * (1 + kConsumerWarpGroups) - kProducerRegisters) / kConsumerWarpGroups / 8 * 8;
  static constexpr int kConsumerRegisters = kShare < kMaxRegisters ? kShare : kMaxRegisters;

  using MainloopPipeline = typename CollectiveMainloop::MainloopPipeline;
  static constexpr bool kColumnwise = kByColumns<CollectiveEpilogue>;
  static constexpr int kTileM = cute::size<0>(TileShape{}), kWidest = cute::size<1>(TileShape{});
  static constexpr int kBlocksM = kTileM / (64 * kTileWarpGroups);
  static constexpr int kColumns = [] {
    if constexpr (kColumnwise) {
      return CollectiveEpilogue::kColumns;
    } else {
      return kWidest;
    }
  }();
  static constexpr int kSubtiles = kWidest / kColumns;
  /// Sums of a subtile, of one thread and 64 rows.
  static constexpr int kSubtileSums = 64 * kColumns / kWarpGroup;
  using Peers = ClusterFixup<kTileWarpGroups, kSubtiles, kSubtileSums>;
  /// A tile may be split among the CTAs of a cluster where the kernel itself needs none and its epilogue goes by columns alone.
  static constexpr bool kClusterFixup = kColumnwise && cute::size(ClusterShape{}) == 1 && kBlocksM == 1 &&
                                        Peers::kBytes <= int(sizeof(typename CollectiveMainloop::TensorStorage));

  /// Turns of the two ping-pong warpgroups at the main loop.
  using Turns = cutlass::OrderedSequenceBarrier<1, 2>;

  struct SharedStorage {
    struct TensorStorage : cute::aligned_struct<128, cute::_1> {
      typename CollectiveMainloop::TensorStorage mainloop;
      typename CollectiveEpilogue::TensorStorage epilogue;
    } tensors;
    struct PipelineStorage : cute::aligned_struct<16, cute::_1> {
      alignas(16) typename CollectiveMainloop::PipelineStorage mainloop;
      alignas(16) typename Turns::SharedStorage turns;
      alignas(16) typename Peers::Barriers peers;
    } pipelines;
  };
  static constexpr int SharedStorageSize = int(sizeof(SharedStorage));
  static constexpr int kSharedMemory = 233472, kReservedSharedMemory = 1024;  // an SM's; what each CTA takes on top of its own
  static_assert((SharedStorageSize + kReservedSharedMemory) * Policy::kCtasPerSm <= kSharedMemory, "too many stages");

  struct Arguments {
    ProblemShape problem_shape{};
    typename CollectiveMainloop::Arguments mainloop{};
    typename CollectiveEpilogue::Arguments epilogue{};
    typename TileScheduler::Params scheduler{};
  };
  struct Params {
    ProblemShape problem_shape{};
    typename CollectiveMainloop::Params mainloop{};
    typename CollectiveEpilogue::Params epilogue{};
    typename TileScheduler::Params scheduler{};
  };

  static Params to_underlying_arguments(Arguments const& arguments) {
    return {arguments.problem_shape,
            CollectiveMainloop::to_underlying_arguments(arguments.problem_shape, arguments.mainloop, nullptr),
            CollectiveEpilogue::to_underlying_arguments(arguments.problem_shape, arguments.epilogue, nullptr), arguments.scheduler};
  }

  static dim3 get_block_shape() { return dim3(MaxThreadsPerBlock); }

  CUTLASS_DEVICE void operator()(Params const& params, char* shared_memory) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    static_assert(cutlass::arch::IsGdcGloballyEnabled, "without griddepcontrol no load would wait for the grid before this one");
    SharedStorage& storage = *reinterpret_cast<SharedStorage*>(shared_memory);
    int const warp_group = cutlass::canonical_warp_group_idx();
    int const warp = cutlass::canonical_warp_idx_sync();
    bool const loads_operands = warp == 0, consumes = warp_group != 0;

    if (warp == 0 && cute::elect_one_sync()) {
      CollectiveMainloop::prefetch_tma_descriptors(params.mainloop);
    }

    typename MainloopPipeline::Params mainloop_params;
    if (loads_operands) mainloop_params.role = MainloopPipeline::ThreadCategory::Producer;
    if (consumes) mainloop_params.role = MainloopPipeline::ThreadCategory::Consumer;
    mainloop_params.is_leader = threadIdx.x % kWarpGroup == 0;
    mainloop_params.num_consumers = kTileThreads;
    mainloop_params.num_producers = CollectiveMainloop::NumProducerThreadEvents;
    mainloop_params.transaction_bytes = params.mainloop.tma_transaction_bytes;
    if constexpr (kColumnwise) {
      mainloop_params.stages = params.mainloop.stages;
      mainloop_params.reciprocal = params.mainloop.reciprocal;
    }
    MainloopPipeline mainloop_pipeline(storage.pipelines.mainloop, mainloop_params, ClusterShape{});

    Turns turns(storage.pipelines.turns, {uint32_t(warp_group - 1), uint32_t(kWarpGroup)});

    int32_t const cluster_peers = kClusterFixup ? params.scheduler.schedule.cluster_peers() : 1;
    if (cluster_peers > 1 && warp == 0 && cute::elect_one_sync()) {
      Peers::initialise(storage.pipelines.peers, cluster_peers);
      cutlass::arch::fence_barrier_init();
    }

    // The next grid may start its own prologue. All that this grid reads or writes comes after the load warps' wait below.
    cutlass::arch::launch_dependent_grids();

    // Barriers must be initialised in all CTAs of the cluster before any is used.
    if (cute::size(ClusterShape{}) > 1 || cluster_peers > 1) {
      cute::cluster_arrive_relaxed();
      cute::cluster_wait();
    } else {
      __syncthreads();
    }

    TileScheduler const scheduler(params.scheduler);
    auto const problem_shape = cute::append<4>(params.problem_shape, cute::Int<1>{});
    CollectiveMainloop mainloop;
    CollectiveEpilogue epilogue(params.epilogue, storage.tensors.epilogue);

    if (!consumes) {
      if constexpr (kDealsRegisters) cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
      if (loads_operands) load_operands(params, problem_shape, storage, scheduler, mainloop, mainloop_pipeline);
    } else {
      if constexpr (kDealsRegisters) cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
      consume(params, problem_shape, storage, scheduler, mainloop, mainloop_pipeline, epilogue, turns, warp_group - 1);
    }
#endif
  }

 private:
  /// How many subtiles a tile of this launch has.
  CUTLASS_DEVICE static int32_t subtiles(Params const& params) {
    if constexpr (kColumnwise) {
      return params.mainloop.width / kColumns;
    } else {
      return 1;
    }
  }
  /// Whether this CTA loads and stores a subtile: all of them, or in a cluster that shares a tile those dealt out to it.
  CUTLASS_DEVICE static bool is_mine(TileScheduler const& scheduler, int32_t subtile) {
    return !kClusterFixup || scheduler.cluster_peers() == 1 ||
           Peers::owner(subtile, scheduler.cluster_peers()) == int32_t(cute::block_rank_in_cluster());
  }
  template <class Problem>
  CUTLASS_DEVICE static void load_operands(Params const& params, Problem const& problem_shape, SharedStorage& storage,
                                           TileScheduler const& scheduler, CollectiveMainloop& mainloop,
                                           MainloopPipeline& pipeline) {
    auto state = pipeline.producer_start();
    uint32_t const rank = cute::size(ClusterShape{}) > 1 ? cute::block_rank_in_cluster() : 0;
    Work work = scheduler.first();
    work.settle();
    // No operand, no partial sum and no flag is touched before this: consumers follow the loads.
    cutlass::arch::wait_on_dependent_grids();
    for (; work.is_valid(); work = scheduler.next(work)) {
      mainloop.load(problem_shape, params.mainloop, pipeline, state, work.tile_m, work.tile_n, work.k_begin(), work.k_tiles(), rank,
                    storage.tensors.mainloop);
      state.advance(work.k_tiles());
    }
    // No CTA of the cluster may leave while another still signals to its barriers.
    mainloop.load_tail(pipeline, state);
  }

  template <class Problem>
  CUTLASS_DEVICE static void consume(Params const& params, Problem const& problem_shape, SharedStorage& storage,
                                     TileScheduler const& scheduler, CollectiveMainloop& mainloop,
                                     MainloopPipeline& mainloop_pipeline, CollectiveEpilogue& epilogue, Turns& turns,
                                     int consumer) {
    auto mainloop_state = mainloop_pipeline.consumer_start();
    int32_t const count = subtiles(params);
    // Passes a segment by, with the stages that it takes.
    auto const pass = [&](Work const& work) {
      if (!work.is_valid()) return work;
      mainloop_state.advance(work.k_tiles());
      return scheduler.next(work);
    };

    int const thread = kPingPong ? int(threadIdx.x) % kWarpGroup : int(threadIdx.x) - kWarpGroup;
    int const part = kPingPong ? 0 : consumer;  // of the tile
    TiledMma tiled_mma;
    Work work = scheduler.first();
    if (kPingPong && consumer == 1) work = pass(work);
    while (work.is_valid()) {
      // While operands or the turn are awaited there is time to find out what comes next; after the products there is none.
      auto const state = mainloop_state;
      Work next = pass(work);
      if constexpr (kPingPong) next = pass(next);
      next.settle();

      auto accumulators = cute::partition_fragment_C(tiled_mma, cute::take<0, 2>(TileShape{}));
      if constexpr (kColumnwise) {
        // A narrow tile leaves sums alone. Undefined ones would be set again and again, where the loops of all widths meet.
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < cute::size(accumulators); ++i) asm volatile("mov.b32 %0, 0;" : "=f"(accumulators(i)));
      }
      int32_t const row = work.tile_m * kTileM + part * 64, column = work.tile_n * count * kColumns;
      typename CollectiveEpilogue::Target target;
      if constexpr (kPingPong) turns.wait();
      mainloop.mma(mainloop_pipeline, state, accumulators, work.k_tiles(), thread, storage.tensors.mainloop, params.mainloop, [&] {
        if constexpr (kPingPong) turns.arrive();
        target = epilogue.target(row, column, consumer);
      });

      bool exchanged = false;
      if constexpr (kClusterFixup) {
        if (scheduler.cluster_peers() > 1) {
          Peers const peers(storage.pipelines.peers, &storage.tensors.mainloop, scheduler.cluster_peers(), part);
          peers.exchange(reinterpret_cast<float*>(accumulators.data()), count, TileScheduler::fixup_barrier(consumer));
          exchanged = true;
        }
      }
      if (!exchanged) scheduler.template fixup<kSubtiles>(work, accumulators, count, kTileWarpGroups, part, consumer);

      if (scheduler.finishes(work)) {
        if constexpr (kColumnwise) {
          epilogue.template store<kWidest>(
              target, accumulators.data(), row, column, count, [&](int subtile) { return is_mine(scheduler, subtile); }, consumer);
        } else {
          epilogue.store(problem_shape, accumulators, work.tile_m, work.tile_n, thread);
        }
      }
      work = next;
    }
  }
};

}  // namespace cutlass_sk
