/// The C ABI around a Hopper kernel (TMA, and wgmma or fp64 mma.sync) in our kernel layer.
#pragma once
#include <cuda.h>

#include <array>
#include <type_traits>

#include "cutlass/device_kernel.h"
#include "cutlass_sk/shim.h"
#include "cutlass_sk/stream_k_gemm.hpp"
#include "cutlass_sk/tensor_map.h"

namespace cutlass_sk {

/// Whether a main loop takes several widths and limits on chains of sums.
template <class Mainloop, class = void>
constexpr bool kTakesWidths = false;
template <class Mainloop>
constexpr bool kTakesWidths<Mainloop, std::void_t<decltype(Mainloop::kNarrowest)>> = true;

template <class Kernel>
struct Gemm3x {
  using Scheduler = typename Kernel::TileScheduler;
  using Mainloop = typename Kernel::CollectiveMainloop;
  using Epilogue = typename Kernel::CollectiveEpilogue;
  using Schedule = typename Scheduler::Schedule;
  using ElementA = typename Kernel::ElementA;
  using ElementC = typename Kernel::ElementC;
  static constexpr int kTileM = cute::size<0>(typename Kernel::TileShape{});
  static constexpr int kTileN = cute::size<1>(typename Kernel::TileShape{});
  static constexpr int kTileK = cute::size<2>(typename Kernel::TileShape{});
  static constexpr int kClusterM = Scheduler::kClusterM, kClusterN = Scheduler::kClusterN, kClusterSize = Scheduler::kClusterSize;
  static constexpr int kNarrowest = [] {
    if constexpr (kTakesWidths<Mainloop>) {
      return Mainloop::kNarrowest;
    } else {
      return kTileN;
    }
  }();
  static constexpr int kTmaBytes = 16, kBytesC = Epilogue::kAlignmentBytes;
  static constexpr int64_t kPartialBytes = int64_t(Scheduler::kTileElements) * int64_t(sizeof(typename Kernel::ElementAccumulator));
  using Params = typename Kernel::Params;
  static constexpr bool kClustered = true;
  static constexpr int kThreads = int(Kernel::MaxThreadsPerBlock), kSharedMemoryBytes = Kernel::SharedStorageSize;
  /// A kernel with a column-major c computes c^T = b^T a^T: its a is the caller's b^T, its b is the caller's a^T.
  static constexpr bool kSwapped = !cute::is_static_v<decltype(cute::get<1>(typename Kernel::StrideC{}))>;
  static constexpr bool kRowMajorA = cute::is_static_v<decltype(cute::get<1>(typename Kernel::StrideA{}))>;
  static constexpr bool kRowMajorB = cute::is_static_v<decltype(cute::get<0>(typename Kernel::StrideB{}))>;
  static constexpr OperandRules kRules{kSwapped ? !kRowMajorB : kRowMajorA,
                                       kSwapped ? !kRowMajorA : kRowMajorB,
                                       true,
                                       kTmaBytes / int(sizeof(ElementA)),
                                       kTmaBytes / int(sizeof(ElementA)),
                                       kBytesC / int(sizeof(ElementC)),
                                       int(sizeof(ElementA)),
                                       int(sizeof(ElementC))};

  static void const* function() { return reinterpret_cast<void const*>(cutlass::device_kernel<Kernel>); }

  static void describe(CutlassSkDescription* out) {
    out->tile_m = kTileM;
    out->tile_n = kTileN;
    out->tile_k = kTileK;
    out->narrowest = kNarrowest;
    out->cluster_m = kClusterM;
    out->cluster_n = kClusterN;
    out->stages = Kernel::DispatchPolicy::Stages;
    out->cluster_fixup = Kernel::kClusterFixup;
    out->partial_bytes = kPartialBytes;
  }

  static void query(CutlassSkProblem const&, CutlassSkPlan const& plan, CutlassSkQuery* out) {
    out->grid = plan.grid;
    out->sk_tiles = plan.sk_tiles;
    out->sk_units = plan.sk_units;
    int64_t const slots = plan.in_clusters != 0 ? 0 : int64_t(plan.sk_units) * kClusterSize;
    out->partials_bytes = slots * kPartialBytes;
    out->barrier_bytes = slots * Kernel::kTileWarpGroups * int64_t(sizeof(uint32_t));
  }

  /// A split in clusters: one part a CTA, and nothing else.
  static bool takes_clusters(CutlassSkPlan const& plan) {
    return Kernel::kClusterFixup && Kernel::Peers::takes(plan.splits) && plan.dp_tiles == 0 && plan.sk_units == plan.grid;
  }

  /// The problem and the operands as the kernel sees them.
  static CutlassSkProblem framed(CutlassSkProblem const& p) {
    return kSwapped ? CutlassSkProblem{p.n, p.m, p.k, p.ldb, p.lda, p.ldc} : p;
  }
  static void const* operand_a(CutlassSkAddresses const& x) { return kSwapped ? x.b : x.a; }
  static void const* operand_b(CutlassSkAddresses const& x) { return kSwapped ? x.a : x.b; }

  static bool takes_width(int32_t width) {
    if constexpr (kTakesWidths<Mainloop>) {
      return Mainloop::takes_width(width);
    } else {
      return width == kTileN;
    }
  }
  static bool takes_promotion(int32_t width) {
    if constexpr (kTakesWidths<Mainloop>) {
      return Mainloop::takes_promotion(width);
    } else {
      return false;
    }
  }

  static int32_t check_plan(CutlassSkProblem const& given, CutlassSkPlan const& plan, CutlassSkResult* result) {
    CutlassSkProblem const problem = framed(given);
    auto const covers = [](int64_t tiles, int64_t tile, int64_t cluster, int64_t size) {
      int64_t const span = tile * cluster;
      return tiles == (size + span - 1) / span * cluster;
    };
    bool const fits = takes_width(plan.tile_n) && covers(plan.tiles_m, kTileM, kClusterM, problem.m) &&
                      covers(plan.tiles_n, plan.tile_n, kClusterN, problem.n) &&
                      covers(plan.iters_per_tile, kTileK, 1, problem.k) && plan.grid > 0 && plan.grid % kClusterSize == 0 &&
                      plan.sk_tiles % kClusterSize == 0 && plan.reduction_ctas == 0 && plan.promotion_iters >= 0 &&
                      (plan.promotion_iters == 0 || takes_promotion(plan.tile_n)) &&
                      (plan.in_clusters == 0 || takes_clusters(plan)) &&
                      int64_t(plan.dp_tiles) + plan.sk_tiles == int64_t(plan.tiles_m) * plan.tiles_n;
    if (!fits || !Schedule::valid(plan.grid / kClusterSize, plan.tiles_m / kClusterM, plan.tiles_n / kClusterN, plan.iters_per_tile,
                                  plan.sk_tiles / kClusterSize, plan.sk_units, plan.splits, plan.raster_swizzle)) {
      return fail(
          result, CUTLASS_SK_BAD_PLAN,
          "plan (grid %d, tiles %dx%d, %d wide, of %d iterations, dp_tiles %d, sk_tiles %d, sk_units %d, splits %d) does not fit",
          plan.grid, plan.tiles_m, plan.tiles_n, plan.tile_n, plan.iters_per_tile, plan.dp_tiles, plan.sk_tiles, plan.sk_units,
          plan.splits);
    }
    return CUTLASS_SK_OK;
  }

  /// TMA asks for aligned pointers and strides only, unlike Kernel::can_implement, which asks for aligned extents.
  static int32_t check_extents(CutlassSkProblem const&, CutlassSkResult*) { return CUTLASS_SK_OK; }

  static dim3 cluster(CutlassSkLaunch const& launch) {
    return dim3(unsigned(launch.plan.in_clusters != 0 ? launch.plan.splits : kClusterM), unsigned(kClusterN), 1);
  }
  static dim3 grid(CutlassSkLaunch const& launch) { return dim3(unsigned(launch.plan.grid / kClusterN), unsigned(kClusterN), 1); }

  static int32_t make_params(CutlassSkLaunch const& launch, Params& params, CutlassSkResult* result) {
    CutlassSkProblem const problem = framed(launch.problem);
    CutlassSkPlan const& plan = launch.plan;
    CutlassSkAddresses const& addresses = launch.addresses;
    typename Kernel::Arguments arguments{};
    arguments.problem_shape = {int(problem.m), int(problem.n), int(problem.k), 1};
    arguments.mainloop.ptr_A = static_cast<ElementA const*>(operand_a(addresses));
    arguments.mainloop.dA = stride<typename Kernel::StrideA>(problem.lda);
    arguments.mainloop.ptr_B = static_cast<typename Kernel::ElementB const*>(operand_b(addresses));
    arguments.mainloop.dB = stride<typename Kernel::StrideB>(problem.ldb);
    if constexpr (kTakesWidths<Mainloop>) {
      arguments.mainloop.width = plan.tile_n;
      arguments.mainloop.chain_iters = plan.promotion_iters;
    }
    arguments.epilogue.thread.alpha = decltype(arguments.epilogue.thread.alpha)(addresses.alpha);
    arguments.epilogue.thread.beta = decltype(arguments.epilogue.thread.beta)(addresses.beta);
    arguments.epilogue.ptr_C = arguments.epilogue.ptr_D = static_cast<ElementC*>(addresses.c);
    arguments.epilogue.dC = stride<typename Kernel::StrideC>(problem.ldc);
    arguments.epilogue.dD = stride<typename Kernel::StrideD>(problem.ldc);
    arguments.scheduler = {schedule(plan), addresses.partials, static_cast<uint32_t*>(addresses.barriers),
                           plan.nondeterministic != 0};
    params = Kernel::to_underlying_arguments(arguments);
    for (CUtensorMap const* map : maps(params)) {
      // What the driver refuses stays an empty descriptor.
      static CUtensorMap const empty{};
      if (std::memcmp(map, &empty, sizeof(empty)) == 0) {
        return fail(result, CUTLASS_SK_CUTLASS_ERROR, "cuTensorMapEncodeTiled refused an operand");
      }
    }
    if (replace_address() == nullptr) return fail(result, CUTLASS_SK_CUDA_ERROR, "the driver has no cuTensorMapReplaceAddress");
    return CUTLASS_SK_OK;
  }

  static int32_t set_addresses(Params& params, CutlassSkAddresses const& addresses, CutlassSkResult* result) {
    void* const operands[] = {const_cast<void*>(operand_a(addresses)), const_cast<void*>(operand_b(addresses))};
    auto const replace = replace_address();
    auto const descriptors = maps(params);
    for (size_t i = 0; i < descriptors.size(); ++i) {
      if (CUresult const error = replace(descriptors[i], operands[i])) {
        result->cuda_error = int32_t(error);
        return fail(result, CUTLASS_SK_CUDA_ERROR, "cuTensorMapReplaceAddress: %d", int(error));
      }
    }
    params.epilogue.set(addresses.alpha, addresses.beta, static_cast<ElementC*>(addresses.c));
    params.scheduler.partials = addresses.partials;
    params.scheduler.barriers = static_cast<uint32_t*>(addresses.barriers);
    return CUTLASS_SK_OK;
  }

 private:
  static Schedule schedule(CutlassSkPlan const& plan) {
    return Schedule(plan.grid / kClusterSize, plan.tiles_m / kClusterM, plan.tiles_n / kClusterN, plan.iters_per_tile,
                    plan.sk_tiles / kClusterSize, plan.sk_units, plan.splits, plan.raster_along_n != 0, plan.raster_swizzle,
                    plan.in_clusters != 0);
  }

  /// A CUTLASS stride (m or n, k, l) with the leading dimension in its one dynamic place.
  template <class Stride>
  static Stride stride(int64_t leading) {
    Stride stride{};
    if constexpr (cute::is_static_v<decltype(cute::get<0>(stride))>) {
      cute::get<1>(stride) = leading;
    } else {
      cute::get<0>(stride) = leading;
    }
    return stride;
  }

  /// The TMA descriptors of a and b.
  static std::array<CUtensorMap*, 2> maps(Params& params) {
    if constexpr (kTakesWidths<Mainloop>) {
      return {&params.mainloop.map_a, &params.mainloop.map_b};
    } else {
      return {&params.mainloop.tma_load_a.tma_desc_, &params.mainloop.tma_load_b.tma_desc_};
    }
  }

  using ReplaceAddress = CUresult (*)(CUtensorMap*, void*);

  static ReplaceAddress replace_address() {
    static ReplaceAddress const function = driver_function<ReplaceAddress>("cuTensorMapReplaceAddress");
    return function;
  }
};

}  // namespace cutlass_sk
