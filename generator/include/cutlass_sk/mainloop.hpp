/// CUTLASS's TMA + wgmma main loop with two changes: how a stage is given back, and an end to long chains of sums.
///
/// Without a cluster, CUTLASS has every thread of a warpgroup give a stage back; here one of each warp does, in its own CTA
/// whatever the cluster that was launched. And wgmma adds to float32 accumulators by truncation, so that the error of one long
/// chain grows with its length: for float32 outputs, where that is the largest error there is, a launch may end chains every few
/// k-tiles, and ordinary float32 additions collect them.
#pragma once
#include "cutlass/gemm/collective/collective_mma.hpp"
#include "cutlass/pipeline/pipeline.hpp"

namespace cutlass_sk {

/// PipelineTmaAsync of one CTA: consumers give a stage back to their own producer, one thread a warp.
template <int Stages>
class LocalPipeline : public cutlass::PipelineTmaAsync<Stages> {
 public:
  using Base = cutlass::PipelineTmaAsync<Stages>;
  using typename Base::Params;
  using typename Base::PipelineState;
  using typename Base::SharedStorage;

  template <class ClusterShape>
  CUTLASS_DEVICE LocalPipeline(SharedStorage& storage, Params const& params, ClusterShape cluster)
      : Base(storage, params, cluster, cute::false_type{}, cute::true_type{}), storage_(storage) {
    static_assert(cute::size(ClusterShape{}) == 1);
    if (cutlass::canonical_warp_idx_sync() == 0) {
      cutlass::arch::detail::initialize_barrier_array_pair_aligned<decltype(storage.full_barrier_),
                                                                   decltype(storage.empty_barrier_), Stages>(
          storage.full_barrier_, storage.empty_barrier_, params.num_producers, params.num_consumers / cutlass::NumThreadsPerWarp);
    }
    cutlass::arch::fence_barrier_init();
  }

  CUTLASS_DEVICE void consumer_release(PipelineState state) const {
    if (cutlass::canonical_lane_idx() == 0) storage_.empty_barrier_[state.index()].arrive();
  }

 private:
  SharedStorage& storage_;
};

/// `Collective`: CUTLASS's main loop, for everything but the consumers' part. `promotable`: whether chains may end.
template <class Collective, bool promotable>
class Mainloop : public Collective {
 public:
  using typename Collective::DispatchPolicy;
  using typename Collective::PipelineState;
  using typename Collective::TensorStorage;
  using typename Collective::TiledMma;
  using ClusterShape = typename DispatchPolicy::ClusterShape;
  using MainloopPipeline = cute::conditional_t<cute::size(ClusterShape{}) == 1, LocalPipeline<DispatchPolicy::Stages>,
                                               cutlass::PipelineTmaAsync<DispatchPolicy::Stages>>;

  struct Arguments : Collective::Arguments {
    int32_t chain_iters = 0;  ///< k-tiles in a chain of sums; 0: all
  };
  struct Params : Collective::Params {
    int32_t chain_iters = 0;
  };

  template <class ProblemShape>
  static Params to_underlying_arguments(ProblemShape const& problem_shape, Arguments const& arguments, void* workspace) {
    return {Collective::to_underlying_arguments(problem_shape, arguments, workspace), arguments.chain_iters};
  }

  /// Multiplies `k_tiles` (at least one) k-tiles from `state` on. The last stage is still in use when this returns.
  template <class Accumulators>
  CUTLASS_DEVICE void mma(MainloopPipeline& pipeline, PipelineState state, Accumulators& accumulators, int k_tiles, int thread,
                          TensorStorage& tensors, Params const& params) const {
    using namespace cute;
    Tensor const a = make_tensor(make_smem_ptr(tensors.smem_A.data()), typename Collective::SmemLayoutA{});  // (m, k, stage)
    Tensor const b = make_tensor(make_smem_ptr(tensors.smem_B.data()), typename Collective::SmemLayoutB{});  // (n, k, stage)
    TiledMma tiled_mma;
    int const warp_group = __shfl_sync(0xffffffffu, thread / cutlass::NumThreadsPerWarpGroup, 0);
    auto const slice = tiled_mma.get_slice(warp_group * cutlass::NumThreadsPerWarpGroup);
    Tensor const fragments_a = slice.make_fragment_A(slice.partition_A(a));
    Tensor const fragments_b = slice.make_fragment_B(slice.partition_B(b));

    auto const multiply = [&](auto& sums, GMMA::ScaleOut scale) {
      pipeline.consumer_wait(state, pipeline.consumer_try_wait(state));
      warpgroup_fence_operand(sums);
      warpgroup_arrive();
      tiled_mma.accumulate_ = scale;
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < size<2>(fragments_a); ++block) {
        gemm(tiled_mma, fragments_a(_, _, block, state.index()), fragments_b(_, _, block, state.index()), sums);
        tiled_mma.accumulate_ = GMMA::ScaleOut::One;
      }
      warpgroup_commit_batch();
      ++state;
    };

    PipelineState in_use = state;
    auto const give_back = [&] { pipeline.consumer_release(in_use), ++in_use; };

    if constexpr (!promotable) {
      multiply(accumulators, GMMA::ScaleOut::Zero);
      CUTLASS_PRAGMA_NO_UNROLL
      for (; k_tiles > 1; --k_tiles) {
        multiply(accumulators, GMMA::ScaleOut::One);
        warpgroup_wait<1>();
        warpgroup_fence_operand(accumulators);
        give_back();
      }
      warpgroup_fence_operand(accumulators);
    } else {
      Tensor chain = make_fragment_like(accumulators);
      int32_t const length = params.chain_iters > 0 ? params.chain_iters : k_tiles;
      clear(accumulators);
      while (k_tiles > 0) {
        int32_t const links = length < k_tiles ? length : k_tiles;
        k_tiles -= links;
        multiply(chain, GMMA::ScaleOut::Zero);
        CUTLASS_PRAGMA_NO_UNROLL
        for (int32_t link = 1; link < links; ++link) {
          multiply(chain, GMMA::ScaleOut::One);
          warpgroup_wait<1>();
          give_back();
        }
        warpgroup_wait<0>();
        warpgroup_fence_operand(chain);
        if (k_tiles > 0) give_back();
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < size(accumulators); ++i) accumulators(i) += chain(i);
      }
    }
  }

  /// Waits for the last products and gives their stage back.
  CUTLASS_DEVICE void mma_tail(MainloopPipeline& pipeline, PipelineState state, int k_tiles) const {
    cute::warpgroup_wait<0>();
    state.advance(k_tiles - 1);
    pipeline.consumer_release(state);
  }
};

}  // namespace cutlass_sk
