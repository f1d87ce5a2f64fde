/// A TMA pipeline of as many stages as a launch has room for: their number is known at run time, unlike PipelineTmaAsync's.
///
/// Consumers are whole warpgroups in step, as wgmma keeps them: each gives a stage back with one arrival at every CTA that loads
/// into it.
#pragma once
#include "cutlass/arch/barrier.h"
#include "cutlass/pipeline/pipeline.hpp"

namespace cutlass_sk {

template <int most_stages, class ClusterShape>
class StageRing {
  static constexpr int kClusterM = cute::size<0>(ClusterShape{}), kClusterN = cute::size<1>(ClusterShape{});
  static constexpr int kPeers = kClusterM + kClusterN - 1;
  static constexpr int kThreads = cutlass::NumThreadsPerWarpGroup;
  static_assert(kPeers <= kThreads / cutlass::NumThreadsPerWarp, "one warp of a warpgroup for each peer");
  static_assert(most_stages <= cutlass::NumThreadsPerWarp, "one thread of a warp for each stage");

 public:
  using FullBarrier = cutlass::arch::ClusterTransactionBarrier;
  using EmptyBarrier = cutlass::arch::ClusterBarrier;
  using ProducerBarrierType = typename FullBarrier::ValueType;

  struct SharedStorage {
    FullBarrier full[most_stages];
    EmptyBarrier empty[most_stages];
  };

  enum class ThreadCategory { NonParticipant, Producer, Consumer };

  /// As PipelineTmaAsync's, and how many stages there are.
  struct Params {
    uint32_t transaction_bytes = 0;
    ThreadCategory role = ThreadCategory::NonParticipant;
    uint32_t is_leader = 0;
    uint32_t num_consumers = 0;  ///< threads
    uint32_t num_producers = 1;
    int32_t stages = most_stages;
    uint32_t reciprocal = reciprocal_of(most_stages);
  };

  /// 2^32 / stages, rounded up: the high half of a product with it is the quotient of anything below 2^28.
  CUTLASS_HOST_DEVICE static constexpr uint32_t reciprocal_of(int32_t stages) { return 0xffffffffu / uint32_t(stages) + 1; }

  /// A place in the ring. The phase is the parity that its barrier's next completion has.
  class PipelineState {
   public:
    PipelineState() = default;
    CUTLASS_DEVICE PipelineState(int32_t stages, uint32_t reciprocal, uint32_t phase)
        : stages_(stages), reciprocal_(reciprocal), phase_(phase) {}
    CUTLASS_DEVICE int32_t index() const { return index_; }
    CUTLASS_DEVICE uint32_t phase() const { return phase_; }
    CUTLASS_DEVICE PipelineState& operator++() {
      if (++index_ == stages_) {
        index_ = 0;
        phase_ ^= 1;
      }
      return *this;
    }
    CUTLASS_DEVICE void advance(int32_t count) {
      uint32_t const there = uint32_t(index_ + count), rounds = __umulhi(there, reciprocal_);
      index_ = int32_t(there - rounds * uint32_t(stages_));
      phase_ ^= rounds & 1;
    }

   private:
    int32_t stages_ = 1;
    uint32_t reciprocal_ = 0;
    int32_t index_ = 0;
    uint32_t phase_ = 0;
  };

  /// Operands are multicast along the rows and columns of the cluster: a stage is free once the consumers of all CTAs in this CTA's
  /// row and column have given it back.
  CUTLASS_DEVICE StageRing(SharedStorage& storage, Params const& params, ClusterShape)
      : storage_(storage), transaction_bytes_(params.transaction_bytes), stages_(params.stages), reciprocal_(params.reciprocal) {
    // Stages are dealt out to warps: the hardware initialises the barriers of one warp's threads one after the other.
    int const first = cutlass::canonical_warp_idx_sync(), step = int(blockDim.x) / cutlass::NumThreadsPerWarp;
    if (cute::elect_one_sync()) {
      for (int stage = first; stage < most_stages; stage += step) {
        storage.full[stage].init(params.num_producers);
        storage.empty[stage].init(kPeers * params.num_consumers / kThreads);
      }
      cutlass::arch::fence_barrier_init();
    }
    int const warp = int(threadIdx.x) % kThreads / cutlass::NumThreadsPerWarp;
    signals_ = warp < kPeers && cutlass::canonical_lane_idx() == 0;
    if constexpr (kPeers > 1) {
      dim3 const block = cute::block_id_in_cluster();
      int const other = warp - kClusterM;  // of the CTAs in this one's row, itself left out
      peer_ = warp < kClusterM ? warp + int(block.y) * kClusterM : int(block.x) + (other + (other >= int(block.y))) * kClusterM;
    }
  }

  /// Where producers and consumers start.
  CUTLASS_DEVICE PipelineState producer_start() const { return {stages_, reciprocal_, 1}; }
  CUTLASS_DEVICE PipelineState consumer_start() const { return {stages_, reciprocal_, 0}; }

  CUTLASS_DEVICE void producer_acquire(PipelineState const& state) {
    storage_.empty[state.index()].wait(state.phase());
    storage_.full[state.index()].arrive_and_expect_tx(transaction_bytes_);
  }
  CUTLASS_DEVICE ProducerBarrierType* producer_get_barrier(PipelineState const& state) {
    return reinterpret_cast<ProducerBarrierType*>(&storage_.full[state.index()]);
  }
  /// Waits until all stages are free. Called by a whole warp.
  CUTLASS_DEVICE void producer_tail(PipelineState state) {
    int32_t const lane = int32_t(cutlass::canonical_lane_idx());
    // A parity tells two uses of a stage apart, not three: nobody may wait before the last load has been issued.
    __syncwarp();
    if (lane < stages_) {
      state.advance(lane);
      storage_.empty[state.index()].wait(state.phase());
    }
    __syncwarp();
  }
  CUTLASS_DEVICE void consumer_wait(PipelineState const& state) { storage_.full[state.index()].wait(state.phase()); }
  /// Called by all threads of a warpgroup, once its products are done.
  CUTLASS_DEVICE void consumer_release(PipelineState const& state) {
    if constexpr (kPeers == 1) {
      // No branch: the tensor core's work is under way, and ptxas would wait for it.
      asm volatile(
          "{\n"
          ".reg .pred signals;\n"
          "setp.ne.b32 signals, %1, 0;\n"
          "@signals mbarrier.arrive.shared::cta.b64 _, [%0];\n"
          "}\n" ::"r"(cute::cast_smem_ptr_to_uint(&storage_.empty[state.index()])),
          "r"(int(signals_))
          : "memory");
    } else {
      storage_.empty[state.index()].arrive(uint32_t(peer_), signals_);
    }
  }

 private:
  SharedStorage& storage_;
  uint32_t transaction_bytes_;
  int32_t stages_;
  uint32_t reciprocal_;
  bool signals_;
  int peer_ = 0;
};

}  // namespace cutlass_sk
