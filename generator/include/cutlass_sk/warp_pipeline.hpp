/// A TMA pipeline whose consumers are warps that run apart: each of them releases a stage by itself, with one arrival.
///
/// CUTLASS's PipelineTmaAsync counts one arrival a warpgroup in clusters, which is for warpgroups in step as wgmma keeps them, and
/// one a thread without, which is many for short stages.
#pragma once
#include "cutlass/arch/barrier.h"
#include "cutlass/pipeline/pipeline.hpp"

namespace cutlass_sk {

template <int stages>
class WarpPipeline {
 public:
  using FullBarrier = cutlass::arch::ClusterTransactionBarrier;
  using EmptyBarrier = cutlass::arch::ClusterBarrier;
  using ProducerBarrierType = typename FullBarrier::ValueType;
  using PipelineState = cutlass::PipelineState<stages>;
  static constexpr uint32_t Stages = stages;

  struct SharedStorage {
    FullBarrier full[stages];
    EmptyBarrier empty[stages];
  };

  enum class ThreadCategory { NonParticipant, Producer, Consumer };

  /// As PipelineTmaAsync's.
  struct Params {
    uint32_t transaction_bytes = 0;
    ThreadCategory role = ThreadCategory::NonParticipant;
    uint32_t is_leader = 0;
    uint32_t num_consumers = 0;  ///< threads
    uint32_t num_producers = 1;
  };

  /// Operands are multicast along the rows and columns of the cluster: a stage is free once the consumers of all CTAs in this CTA's
  /// row and column have released it.
  template <class ClusterShape>
  CUTLASS_DEVICE WarpPipeline(SharedStorage& storage, Params const& params, ClusterShape)
      : storage_(storage), transaction_bytes_(params.transaction_bytes) {
    constexpr int kClusterM = cute::size<0>(ClusterShape{}), kClusterN = cute::size<1>(ClusterShape{});
    constexpr int kPeers = kClusterM + kClusterN - 1;
    static_assert(kPeers <= cutlass::NumThreadsPerWarp);
    if (cutlass::canonical_warp_idx_sync() == 0 && cute::elect_one_sync()) {
      for (int i = 0; i < stages; ++i) {
        storage.full[i].init(params.num_producers);
        storage.empty[i].init(kPeers * params.num_consumers / cutlass::NumThreadsPerWarp);
      }
    }
    cutlass::arch::fence_barrier_init();
    int const lane = cutlass::canonical_lane_idx();
    signals_ = lane < kPeers;
    if constexpr (kPeers > 1) {
      dim3 const block = cute::block_id_in_cluster();
      int const other = lane - kClusterM;  // of the CTAs in this one's row, itself left out
      peer_ = lane < kClusterM ? lane + int(block.y) * kClusterM : int(block.x) + (other + (other >= int(block.y))) * kClusterM;
    }
  }

  CUTLASS_DEVICE void producer_acquire(PipelineState const& state) {
    storage_.empty[state.index()].wait(state.phase());
    storage_.full[state.index()].arrive_and_expect_tx(transaction_bytes_);
  }
  CUTLASS_DEVICE ProducerBarrierType* producer_get_barrier(PipelineState const& state) {
    return reinterpret_cast<ProducerBarrierType*>(&storage_.full[state.index()]);
  }
  /// Waits until all stages are free.
  CUTLASS_DEVICE void producer_tail(PipelineState state) {
    for (int i = 0; i < stages; ++i, ++state) storage_.empty[state.index()].wait(state.phase());
  }
  CUTLASS_DEVICE void consumer_wait(PipelineState const& state) { storage_.full[state.index()].wait(state.phase()); }
  /// Called by whole warps, after their reads. A read that has been issued is not over: without the fence the arrival may overtake
  /// the last ones, and TMA, which is another proxy, writes what they have yet to see.
  CUTLASS_DEVICE void consumer_release(PipelineState const& state) {
    cutlass::arch::fence_view_async_shared();
    __syncwarp();
    if (peer_ < 0) {
      if (signals_) storage_.empty[state.index()].arrive();
    } else {
      storage_.empty[state.index()].arrive(uint32_t(peer_), signals_);
    }
  }

 private:
  SharedStorage& storage_;
  uint32_t transaction_bytes_;
  bool signals_;
  int peer_ = -1;
};

}  // namespace cutlass_sk
