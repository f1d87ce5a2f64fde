/// The C ABI around a kernel of CUTLASS 3.x collectives (TMA, wgmma) in our kernel layer.
#pragma once
#include <type_traits>

#include "cutlass/device_kernel.h"
#include "cutlass_sk/promoted_mainloop.hpp"
#include "cutlass_sk/shim.h"
#include "cutlass_sk/stream_k_gemm.hpp"

namespace cutlass_sk {

/// Bytes that c's pointer and leading dimension must be multiples of: TMA's 16, unless the epilogue says otherwise.
template <class Epilogue, class = void>
constexpr int kOutputBytes = 16;
template <class Epilogue>
constexpr int kOutputBytes<Epilogue, std::void_t<decltype(Epilogue::kAlignmentBytes)>> = Epilogue::kAlignmentBytes;

/// `promotable`: whether the kernel has a PromotedMainloop, which takes a limit on chains of sums.
template <class Kernel, bool promotable>
struct Gemm3x {
  using Scheduler = typename Kernel::TileScheduler;
  using Schedule = typename Scheduler::Schedule;
  using ElementA = typename Kernel::ElementA;
  using ElementC = typename Kernel::ElementC;
  static constexpr int kTileM = cute::size<0>(typename Kernel::TileShape{});
  static constexpr int kTileN = cute::size<1>(typename Kernel::TileShape{});
  static constexpr int kTileK = cute::size<2>(typename Kernel::TileShape{});
  static constexpr int kClusterM = Scheduler::kClusterM, kClusterN = Scheduler::kClusterN, kClusterSize = Scheduler::kClusterSize;
  static constexpr int kTmaBytes = 16, kBytesC = kOutputBytes<typename Kernel::CollectiveEpilogue>;
  static constexpr int64_t kPartialBytes = int64_t(Scheduler::kTileElements) * int64_t(sizeof(typename Kernel::ElementAccumulator));

  static void describe(CutlassSkDescription* out) {
    out->tile_m = kTileM;
    out->tile_n = kTileN;
    out->tile_k = kTileK;
    out->cluster_m = kClusterM;
    out->cluster_n = kClusterN;
    out->threads = int32_t(Kernel::MaxThreadsPerBlock);
    out->stages = Kernel::DispatchPolicy::Stages;
    out->shared_memory_bytes = Kernel::SharedStorageSize;
    out->alignment_a = out->alignment_b = kTmaBytes / int(sizeof(ElementA));
    out->alignment_c = kBytesC / int(sizeof(ElementC));
    out->partial_bytes = kPartialBytes;
  }

  static int32_t query(CutlassSkProblem const& problem, CutlassSkPlan const& plan, CutlassSkQuery* out, CutlassSkResult* result) {
    if (int32_t status = check_problem(problem, result)) return status;
    if (int32_t status = check_plan(problem, plan, result)) return status;
    out->grid = plan.grid;
    out->sk_tiles = plan.sk_tiles;
    out->sk_units = plan.sk_units;
    out->partials_bytes = int64_t(plan.sk_units) * kClusterSize * kPartialBytes;
    out->barrier_bytes = int64_t(plan.sk_units) * kClusterSize * Kernel::kTileWarpGroups * int64_t(sizeof(uint32_t));
    return CUTLASS_SK_OK;
  }

  static int32_t launch(CutlassSkLaunch const& request, CutlassSkResult* result) {
    CutlassSkProblem const& problem = request.problem;
    CutlassSkPlan const& plan = request.plan;
    if (int32_t status = check_problem(problem, result)) return status;
    if (int32_t status = check_plan(problem, plan, result)) return status;
    if (int32_t status = check_operands(request, result)) return status;

    typename Kernel::Arguments arguments{};
    arguments.problem_shape = {int(problem.m), int(problem.n), int(problem.k), 1};
    arguments.mainloop.ptr_A = static_cast<ElementA const*>(request.a);
    arguments.mainloop.dA = stride<typename Kernel::StrideA>(problem.lda);
    arguments.mainloop.ptr_B = static_cast<typename Kernel::ElementB const*>(request.b);
    arguments.mainloop.dB = stride<typename Kernel::StrideB>(problem.ldb);
    if constexpr (promotable) {
      constexpr int64_t never = int64_t(1) << 30;
      constexpr int64_t mmas_per_tile = kTileK / int(cute::tile_size<2>(typename Kernel::TiledMma{}));
      int64_t const interval = plan.promotion_iters * mmas_per_tile;
      arguments.mainloop.mma_promotion_interval = uint32_t(interval > 0 && interval < never ? interval : never);
    }
    arguments.epilogue.thread.alpha = decltype(arguments.epilogue.thread.alpha)(request.alpha);
    arguments.epilogue.thread.beta = decltype(arguments.epilogue.thread.beta)(request.beta);
    arguments.epilogue.ptr_C = arguments.epilogue.ptr_D = static_cast<ElementC*>(request.c);
    arguments.epilogue.dC = stride<typename Kernel::StrideC>(problem.ldc);
    arguments.epilogue.dD = stride<typename Kernel::StrideD>(problem.ldc);
    arguments.scheduler = {schedule(plan), request.partials, static_cast<uint32_t*>(request.barriers), plan.nondeterministic != 0};
    // Not Kernel::can_implement: it asks for aligned extents, where TMA asks only for aligned pointers and strides (checked above).

    if (cudaError_t error = cudaSetDevice(request.device)) return fail_cuda(result, error, "cudaSetDevice");
    void const* const function = reinterpret_cast<void const*>(cutlass::device_kernel<Kernel>);
    if (cudaError_t error = allow_shared_memory(function, Kernel::SharedStorageSize, request.device)) {
      return fail_cuda(result, error, "cudaFuncSetAttribute(MaxDynamicSharedMemorySize)");
    }
    typename Kernel::Params params = Kernel::to_underlying_arguments(arguments);

    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {unsigned(kClusterM), unsigned(kClusterN), 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(unsigned(plan.grid / kClusterN), unsigned(kClusterN), 1);
    config.blockDim = Kernel::get_block_shape();
    config.dynamicSmemBytes = Kernel::SharedStorageSize;
    config.stream = static_cast<cudaStream_t>(request.stream);
    config.attrs = attributes;
    config.numAttrs = request.programmatic != 0 ? 2 : 1;
    void* parameters[] = {&params};
    if (cudaError_t error = cudaLaunchKernelExC(&config, function, parameters))
      return fail_cuda(result, error, "cudaLaunchKernelExC");
    return CUTLASS_SK_OK;
  }

 private:
  static Schedule schedule(CutlassSkPlan const& plan) {
    return Schedule(plan.grid / kClusterSize, plan.tiles_m / kClusterM, plan.tiles_n / kClusterN, plan.iters_per_tile,
                    plan.sk_tiles / kClusterSize, plan.sk_units, plan.splits, plan.raster_along_n != 0, plan.raster_swizzle);
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

  static int32_t check_plan(CutlassSkProblem const& problem, CutlassSkPlan const& plan, CutlassSkResult* result) {
    auto const covers = [](int64_t tiles, int64_t tile, int64_t cluster, int64_t size) {
      int64_t const span = tile * cluster;
      return tiles == (size + span - 1) / span * cluster;
    };
    bool const fits = covers(plan.tiles_m, kTileM, kClusterM, problem.m) && covers(plan.tiles_n, kTileN, kClusterN, problem.n) &&
                      covers(plan.iters_per_tile, kTileK, 1, problem.k) && plan.grid > 0 && plan.grid % kClusterSize == 0 &&
                      plan.sk_tiles % kClusterSize == 0 && plan.reduction_ctas == 0 && plan.promotion_iters >= 0 &&
                      (promotable || plan.promotion_iters == 0) &&
                      int64_t(plan.dp_tiles) + plan.sk_tiles == int64_t(plan.tiles_m) * plan.tiles_n;
    if (!fits || !Schedule::valid(plan.grid / kClusterSize, plan.tiles_m / kClusterM, plan.tiles_n / kClusterN, plan.iters_per_tile,
                                  plan.sk_tiles / kClusterSize, plan.sk_units, plan.splits, plan.raster_swizzle)) {
      return fail(result, CUTLASS_SK_BAD_PLAN,
                  "plan (grid %d, tiles %dx%d of %d iterations, dp_tiles %d, sk_tiles %d, sk_units %d, splits %d) does not fit",
                  plan.grid, plan.tiles_m, plan.tiles_n, plan.iters_per_tile, plan.dp_tiles, plan.sk_tiles, plan.sk_units,
                  plan.splits);
    }
    return CUTLASS_SK_OK;
  }

  static int32_t check_operands(CutlassSkLaunch const& request, CutlassSkResult* result) {
    CutlassSkProblem const& p = request.problem;
    constexpr bool a_row_major = cute::is_static_v<decltype(cute::get<1>(typename Kernel::StrideA{}))>;
    constexpr bool b_row_major = cute::is_static_v<decltype(cute::get<0>(typename Kernel::StrideB{}))>;
    constexpr bool c_row_major = cute::is_static_v<decltype(cute::get<1>(typename Kernel::StrideC{}))>;
    if (p.lda < (a_row_major ? p.k : p.m) || p.ldb < (b_row_major ? p.n : p.k) || p.ldc < (c_row_major ? p.n : p.m)) {
      return fail(result, CUTLASS_SK_BAD_PROBLEM, "leading dimensions lda=%lld ldb=%lld ldc=%lld are too small", (long long)p.lda,
                  (long long)p.ldb, (long long)p.ldc);
    }
    bool const operands = aligned(request.a, kTmaBytes) && aligned(request.b, kTmaBytes) && aligned(request.c, kBytesC) &&
                          p.lda * int64_t(sizeof(ElementA)) % kTmaBytes == 0 &&
                          p.ldb * int64_t(sizeof(ElementA)) % kTmaBytes == 0 && p.ldc * int64_t(sizeof(ElementC)) % kBytesC == 0;
    if (!operands) {
      return fail(result, CUTLASS_SK_MISALIGNED, "a, b and their leading dimensions must be multiples of %d bytes, c and its of %d",
                  kTmaBytes, kBytesC);
    }
    if (request.plan.sk_units > 0 &&
        (request.partials == nullptr || request.barriers == nullptr || !aligned(request.partials, 128))) {
      return fail(result, CUTLASS_SK_BAD_PLAN, "the plan needs a workspace: partials (128-byte aligned) and barriers");
    }
    return CUTLASS_SK_OK;
  }
};

}  // namespace cutlass_sk
