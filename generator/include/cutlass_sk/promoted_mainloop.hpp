/// A TMA + wgmma main loop that moves its sums out of the tensor core's accumulators now and then.
///
/// wgmma adds to float32 accumulators by truncation, so the error of one long chain grows with its length. For float32 outputs that
/// is the largest error there is: here a launch may end chains every few k-tiles, and ordinary float32 additions collect them.
/// CUTLASS has this loop for 8-bit inputs; nothing in it depends on the element type.
#pragma once
#include "cutlass/gemm/collective/collective_mma.hpp"

namespace cutlass_sk {

template <class Mainloop>
struct PromotedMainloop;

template <int Stages, class ClusterShape, class KernelSchedule, class... Types>
struct PromotedMainloop<cutlass::gemm::collective::CollectiveMma<
    cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<Stages, ClusterShape, KernelSchedule>, Types...>> {
  using type = cutlass::gemm::collective::CollectiveMma<
      cutlass::gemm::MainloopSm90TmaGmmaWarpSpecializedFP8<Stages, ClusterShape, KernelSchedule>, Types...>;
};

}  // namespace cutlass_sk
