/// The C ABI around a CUTLASS 2.x kernel (cp.async, mma.sync) with ThreadblockSwizzleStreamK.
///
/// Its schedule comes from the plan: what the swizzle's constructor would decide is overwritten.
#pragma once
#include "cutlass/gemm/kernel/default_gemm_universal.h"
#include "cutlass/gemm/threadblock/threadblock_swizzle_streamk.h"
#include "cutlass_sk/shim.h"

namespace cutlass_sk {

/// Runs a 2.x kernel. On Hopper it may start as soon as the grid before it has run out of CTAs, and waits for that grid's memory.
/// It gives no early trigger itself: several of these CTAs fit on an SM, and waiting ones would crowd the working ones (fp64 1024^3
/// on an H200: 65 us with, 46 us without).
template <class Kernel>
__global__ void kernel_2x(typename Kernel::Params params) {
  extern __shared__ int shared_memory[];
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  Kernel::invoke(params, *reinterpret_cast<typename Kernel::SharedStorage*>(shared_memory));
}

template <class Kernel>
struct Gemm2x {
  using Params = typename Kernel::Params;
  using Swizzle = typename Kernel::ThreadblockSwizzle;
  using FastDivmod = cutlass::FastDivmod;
  using EpilogueParams = typename Kernel::EpilogueOutputOp::Params;
  using ElementA = typename Kernel::ElementA;
  using ElementC = typename Kernel::ElementC;
  static constexpr int kTileM = Kernel::ThreadblockShape::kM;
  static constexpr int kTileN = Kernel::ThreadblockShape::kN;
  static constexpr int kTileK = Kernel::ThreadblockShape::kK;
  static constexpr int kFragments = Kernel::Epilogue::kAccumulatorFragments;
  static constexpr int64_t kPartialBytes = Kernel::kThreadCount * int64_t(sizeof(typename Kernel::AccumulatorTile));
  static_assert(Kernel::kWorkspaceBytesPerBlock == 2 * kPartialBytes, "a CTA is expected to share up to two tiles");
  static constexpr int kSharedMemoryBytes = int(sizeof(typename Kernel::SharedStorage));
  static constexpr int kThreads = Kernel::kThreadCount;
  static constexpr bool kClustered = false;
  static dim3 cluster(CutlassSkLaunch const&) { return dim3(1); }
  static constexpr OperandRules kRules{cutlass::platform::is_same<typename Kernel::LayoutA, cutlass::layout::RowMajor>::value,
                                       cutlass::platform::is_same<typename Kernel::LayoutB, cutlass::layout::RowMajor>::value,
                                       true,
                                       Kernel::kAlignmentA,
                                       Kernel::kAlignmentB,
                                       Kernel::kAlignmentC,
                                       int(sizeof(ElementA)),
                                       int(sizeof(ElementC))};

  static void const* function() { return reinterpret_cast<void const*>(kernel_2x<Kernel>); }

  static void describe(CutlassSkDescription* out) {
    out->tile_m = kTileM;
    out->tile_n = out->narrowest = kTileN;
    out->tile_k = kTileK;
    out->cluster_m = out->cluster_n = 1;
    out->stages = Kernel::kStages;
    out->accumulator_fragments = kFragments;
    out->partial_bytes = kPartialBytes;
  }

  static void query(CutlassSkProblem const& problem, CutlassSkPlan const& plan, CutlassSkQuery* out) {
    Params params = base_params(problem, plan);
    out->grid = params.get_grid_blocks();
    out->sk_tiles = params.block_mapping.sk_tiles;
    out->sk_units = plan.sk_units > 0 ? params.block_mapping.sk_regions() * params.block_mapping.sk_blocks_per_region() : 0;
    // A separate reduction gives each unit two slots: one for a tile it starts, one for a tile it ends.
    int64_t const slots = int64_t(plan.sk_units) * (plan.reduction_ctas > 0 ? 2 : 1);
    out->partials_bytes = slots * kPartialBytes;
    out->barrier_bytes =
        int64_t(plan.sk_units > plan.reduction_ctas ? plan.sk_units : plan.reduction_ctas) * int64_t(sizeof(int32_t));
  }

  static int32_t check_plan(CutlassSkProblem const& problem, CutlassSkPlan const& plan, CutlassSkResult* result) {
    constexpr int64_t limit = INT32_MAX;
    auto const covers = [](int64_t tiles, int64_t tile, int64_t size) { return tiles == (size + tile - 1) / tile; };
    int64_t const tiles = int64_t(plan.tiles_m) * plan.tiles_n;
    int64_t const line = int64_t(plan.sk_tiles) * plan.iters_per_tile;
    bool const along_n = plan.tiles_m >= plan.tiles_n;  // the order that the kernel itself takes
    bool const fits =
        plan.tile_n == kTileN && covers(plan.tiles_m, kTileM, problem.m) && covers(plan.tiles_n, kTileN, problem.n) &&
        covers(plan.iters_per_tile, kTileK, problem.k) && problem.k <= limit - kTileK && tiles <= limit && plan.dp_tiles >= 0 &&
        plan.sk_tiles >= 0 && int64_t(plan.dp_tiles) + plan.sk_tiles == tiles && line <= limit && plan.sk_units >= 0 &&
        plan.sk_units <= line && (plan.sk_units == 0) == (plan.sk_tiles == 0) && plan.splits >= 1 && plan.nondeterministic == 0 &&
        (plan.splits == 1 || (plan.splits <= plan.iters_per_tile && plan.sk_units == int64_t(plan.sk_tiles) * plan.splits)) &&
        (plan.reduction_ctas == 0 ||
         (plan.sk_units > 2 * int64_t(plan.sk_tiles) && plan.reduction_ctas == int64_t(plan.sk_tiles) * kFragments)) &&
        int64_t(plan.grid) == int64_t(plan.sk_units) + plan.dp_tiles + plan.reduction_ctas &&
        (plan.raster_along_n != 0) == along_n && plan.raster_swizzle == 1 && plan.promotion_iters == 0 && plan.in_clusters == 0;
    if (!fits) {
      return fail(result, CUTLASS_SK_BAD_PLAN,
                  "plan (grid %d, tiles %dx%d of %d iterations, dp_tiles %d, sk_tiles %d, sk_units %d, splits %d) does not fit",
                  plan.grid, plan.tiles_m, plan.tiles_n, plan.iters_per_tile, plan.dp_tiles, plan.sk_tiles, plan.sk_units,
                  plan.splits);
    }
    return CUTLASS_SK_OK;
  }

  /// cp.async predicates whole vectors: contiguous extents must be multiples of the alignment, too.
  static int32_t check_extents(CutlassSkProblem const& problem, CutlassSkResult* result) {
    cutlass::Status const status = Kernel::can_implement(size_of(problem));
    return status == cutlass::Status::kSuccess ? int32_t(CUTLASS_SK_OK) : fail_cutlass(result, status, "can_implement");
  }

  static dim3 grid(CutlassSkLaunch const& launch) { return base_params(launch.problem, launch.plan).get_grid_dims(); }

  static int32_t make_params(CutlassSkLaunch const& launch, Params& params, CutlassSkResult* result) {
    params = base_params(launch.problem, launch.plan);
    return set_addresses(params, launch.addresses, result);
  }

  static int32_t set_addresses(Params& params, CutlassSkAddresses const& addresses, CutlassSkResult*) {
    using Compute = typename Kernel::EpilogueOutputOp::ElementCompute;
    params.ptr_A = const_cast<void*>(addresses.a);
    params.ptr_B = const_cast<void*>(addresses.b);
    params.ptr_C = params.ptr_D = addresses.c;
    params.output_op = EpilogueParams(Compute(addresses.alpha), Compute(addresses.beta));
    params.partials_workspace = addresses.partials;
    params.barrier_workspace = addresses.barriers;
    return CUTLASS_SK_OK;
  }

 private:
  static cutlass::gemm::GemmCoord size_of(CutlassSkProblem const& problem) {
    return cutlass::gemm::GemmCoord(int(problem.m), int(problem.n), int(problem.k));
  }

  static Params base_params(CutlassSkProblem const& problem, CutlassSkPlan const& plan) {
    cutlass::gemm::GemmCoord const size = size_of(problem);
    typename Kernel::Arguments arguments(cutlass::gemm::GemmUniversalMode::kGemm, size, 1, EpilogueParams(), nullptr, nullptr,
                                         nullptr, nullptr, 0, 0, 0, 0, problem.lda, problem.ldb, problem.ldc, problem.ldc, 1);
    Params params(arguments, 1, 1);
    params.block_mapping = mapping(size, plan);
    return params;
  }

  /// What ThreadblockSwizzleStreamK's constructor would decide, taken from the plan: `sk_units` CTAs, then one CTA a data-parallel
  /// tile, then the reduction CTAs. Calling all Stream-K CTAs one wave of `sk_units` keeps its grid free of padding.
  static Swizzle mapping(cutlass::gemm::GemmCoord const& size, CutlassSkPlan const& plan) {
    Swizzle map;
    map.problem_size = size;
    map.batch_count = 1;
    map.cohort_raster = map.remap_block_indices = false;
    map.sm_occupancy = 1;
    map.avail_sms = plan.sk_units > 0 ? plan.sk_units : 1;
    map.dp_blocks = plan.dp_tiles;
    map.dp_first_wave_tiles = 1;
    map.reduction_blocks = plan.reduction_ctas;
    map.sk_waves = plan.sk_units > 0 ? 1 : 0;
    map.sk_tiles = plan.sk_tiles;
    map.sk_big_blocks_per_region = map.sk_iters_per_region = 0;
    map.div_mod_tiled_shape_m = FastDivmod(plan.tiles_m);
    map.div_mod_tiled_shape_n = FastDivmod(plan.tiles_n);
    map.div_mod_iters_per_tile = FastDivmod(plan.iters_per_tile);
    if (plan.sk_units > 0) {
      int const regions = plan.splits > 1 ? plan.sk_tiles : 1;
      int const units = plan.sk_units / regions;
      map.sk_iters_per_region = plan.sk_tiles / regions * plan.iters_per_tile;
      int const iters = map.sk_iters_per_region / units;
      map.sk_big_blocks_per_region = map.sk_iters_per_region % units;
      map.div_mod_sk_iters_per_normal_block = FastDivmod(iters);
      map.div_mod_sk_iters_per_big_block = FastDivmod(iters + 1);
      map.div_mod_sk_iters_per_region = FastDivmod(map.sk_iters_per_region);
      map.div_mod_sk_regions = FastDivmod(regions);
      map.div_mod_sk_blocks_per_region = FastDivmod(units);
    }
    return map;
  }
};

}  // namespace cutlass_sk
