/// A wgmma main loop for our kernel layer whose tiles are as wide as a launch wants: one binary, several tile_n.
///
/// Which width fits a problem best changes from problem to problem, and little of a kernel depends on it: the box that TMA loads of
/// b, how many stages shared memory holds, and one instruction. So the box and the stages come with the launch, and the loop is
/// there once for each width, over the same registers: the sums of a narrow instruction are the first ones of a wide one.
///
/// wgmma adds to float32 accumulators by truncation, so that the error of one long chain grows with its length: for float32
/// outputs, where that is the largest error there is, a launch may end chains every few k-tiles, and ordinary float32 additions
/// collect them.
#pragma once
#include <cuda.h>

#include "cute/arch/copy_sm90_tma.hpp"
#include "cute/atom/mma_atom.hpp"
#include "cute/tensor.hpp"
#include "cutlass/detail/layout.hpp"
#include "cutlass_sk/stage_ring.hpp"
#include "cutlass_sk/tensor_map.h"

namespace cutlass_sk {

/// TileShape: the widest tile. warpgroups: those that share a tile. bytes: of shared memory, for stages. promotable: whether chains
/// of sums may end. LayoutA, LayoutB: cutlass::layout::RowMajor or ColumnMajor.
template <class Element_, class LayoutA, class LayoutB, class TileShape_, int narrowest, class ClusterShape_, int warpgroups,
          int bytes, bool promotable>
class WgmmaMainloop {
 public:
  using TileShape = TileShape_;
  using ClusterShape = ClusterShape_;
  using ElementA = Element_;
  using ElementB = Element_;
  using StrideA = cutlass::detail::TagToStrideA_t<LayoutA>;
  using StrideB = cutlass::detail::TagToStrideB_t<LayoutB>;

  static constexpr int kTileM = cute::size<0>(TileShape{}), kWidest = cute::size<1>(TileShape{}),
                       kTileK = cute::size<2>(TileShape{});
  static constexpr int kNarrowest = narrowest, kStep = 32;
  static constexpr int kClusterM = cute::size<0>(ClusterShape{}), kClusterN = cute::size<1>(ClusterShape{});
  /// Whether sums that a tile so wide leaves unused are enough for the chains under way.
  static constexpr bool takes_promotion(int width) { return promotable && 2 * width <= kWidest; }
  static constexpr bool takes_width(int width) { return width >= kNarrowest && width <= kWidest && width % kStep == 0; }
  static_assert(takes_width(kNarrowest) && takes_width(kWidest) && kTileM % (64 * warpgroups) == 0);

 private:
  static constexpr cute::GMMA::Major kMajorA =
      cute::is_static_v<decltype(cute::get<1>(StrideA{}))> ? cute::GMMA::Major::K : cute::GMMA::Major::MN;
  static constexpr cute::GMMA::Major kMajorB =
      cute::is_static_v<decltype(cute::get<1>(StrideB{}))> ? cute::GMMA::Major::K : cute::GMMA::Major::MN;
  static constexpr bool kKMajorA = kMajorA == cute::GMMA::Major::K, kKMajorB = kMajorB == cute::GMMA::Major::K;
  static constexpr int kRowBytes = kTileK * int(sizeof(Element_));
  static_assert(kRowBytes == 128 && sizeof(Element_) == 2, "a k-tile is one line of the widest swizzle");
  /// How many of a tile's columns, or rows, one box holds where these are contiguous.
  static constexpr int kBlockM = 64, kBlockN = kStep;
  static_assert(kTileM / kClusterN % 8 == 0 && kNarrowest / kClusterM % 8 == 0 && kTileK / kClusterM % 8 == 0 &&
                    kTileK / kClusterN % 8 == 0,
                "peers load whole groups of eight rows");

  using AtomA =
      cute::conditional_t<kKMajorA, cute::GMMA::Layout_K_SW128_Atom<Element_>, cute::GMMA::Layout_MN_SW128_Atom<Element_>>;
  using AtomB = cute::conditional_t<kKMajorB, cute::GMMA::Layout_K_SW128_Atom<Element_>, cute::GMMA::Layout_MN_SW64_Atom<Element_>>;
  template <bool k_major>
  using Order = cute::conditional_t<k_major, cute::Step<cute::_1, cute::_2>, cute::Step<cute::_2, cute::_1>>;
  using SmemLayoutA =
      decltype(cute::tile_to_shape(AtomA{}, cute::Shape<cute::Int<kTileM>, cute::Int<kTileK>>{}, Order<kKMajorA>{}));
  using SmemLayoutB =
      decltype(cute::tile_to_shape(AtomB{}, cute::Shape<cute::Int<kWidest>, cute::Int<kTileK>>{}, Order<kKMajorB>{}));

  template <int width>
  using Instruction =
      decltype(cute::GMMA::ss_op_selector<Element_, Element_, float, cute::Shape<cute::_64, cute::Int<width>, cute::Int<kTileK>>,
                                          kMajorA, kMajorB>());
  static constexpr int kBytesA = kTileM * kRowBytes;

 public:
  /// The warpgroups of a tile lie side by side along m.
  template <int width>
  using TiledMmaOf =
      cute::TiledMMA<cute::MMA_Atom<Instruction<width>>, cute::Layout<cute::Shape<cute::Int<warpgroups>, cute::_1, cute::_1>>>;
  using TiledMma = TiledMmaOf<kWidest>;

  static constexpr int stage_bytes(int width) { return kBytesA + width * kRowBytes; }
  static constexpr int kMostStages = 16;
  static constexpr int stages(int width) {
    int const fit = bytes / stage_bytes(width);
    return fit < kMostStages ? fit : kMostStages;
  }
  static_assert(stages(kWidest) >= 2);
  struct DispatchPolicy {
    using ClusterShape = ClusterShape_;
    static constexpr int Stages = stages(kWidest);
  };

  using MainloopPipeline = StageRing<stages(kNarrowest), ClusterShape>;
  using PipelineState = typename MainloopPipeline::PipelineState;
  using PipelineStorage = typename MainloopPipeline::SharedStorage;
  static constexpr int NumProducerThreadEvents = 1;

  struct TensorStorage {
    alignas(1024) uint8_t stages[bytes / 1024 * 1024];
  };

  struct Arguments {
    ElementA const* ptr_A = nullptr;
    StrideA dA{};
    ElementB const* ptr_B = nullptr;
    StrideB dB{};
    int32_t width = kWidest;
    int32_t chain_iters = 0;  ///< k-tiles in a chain of sums; 0: all
  };
  struct Params {
    CUtensorMap map_a, map_b;
    int32_t width = kWidest;
    int32_t chain_iters = 0;
    int32_t stages = 0;
    uint32_t reciprocal = 0;  ///< of the stages
    uint32_t tma_transaction_bytes = 0;
  };

  /// A map that cannot be encoded stays zero.
  template <class ProblemShape>
  static Params to_underlying_arguments(ProblemShape const& problem_shape, Arguments const& arguments, void*) {
    auto const [m, n, k, batch] = cute::append<4>(problem_shape, 1);
    int const width = arguments.width;
    Params params{};
    params.map_a = kKMajorA ? encode_map(arguments.ptr_A, k, m, cute::get<0>(arguments.dA), kTileK, kTileM / kClusterN, 128)
                            : encode_map(arguments.ptr_A, m, k, cute::get<1>(arguments.dA), kBlockM, kTileK / kClusterN, 128);
    params.map_b = kKMajorB ? encode_map(arguments.ptr_B, k, n, cute::get<0>(arguments.dB), kTileK, width / kClusterM, 128)
                            : encode_map(arguments.ptr_B, n, k, cute::get<1>(arguments.dB), kBlockN, kTileK / kClusterM, 64);
    params.width = width;
    params.chain_iters = arguments.chain_iters;
    params.stages = stages(width);
    params.reciprocal = MainloopPipeline::reciprocal_of(params.stages);
    params.tma_transaction_bytes = uint32_t(stage_bytes(width));
    return params;
  }

  CUTLASS_DEVICE static void prefetch_tma_descriptors(Params const& params) {
    cute::prefetch_tma_descriptor(&params.map_a);
    cute::prefetch_tma_descriptor(&params.map_b);
  }

  /// Called by one warp, one of whose threads loads: `k_tiles` k-tiles of tile (tile_m, tile_n) from k-tile `k_tile` on.
  template <class ProblemShape>
  CUTLASS_DEVICE void load(ProblemShape const&, Params const& params, MainloopPipeline& pipeline, PipelineState state, int tile_m,
                           int tile_n, int k_tile, int k_tiles, uint32_t block_rank, TensorStorage& storage) const {
    if (!cute::elect_one_sync()) return;
    int const block_m = int(block_rank) % kClusterM, block_n = int(block_rank) / kClusterM;
    int const width = params.width, bytes_of_stage = stage_bytes(width);
    int const m = tile_m * kTileM, n = tile_n * width;
    uint16_t peers_a = 0, peers_b = 0;
    for (int i = 0; i < kClusterN; ++i) peers_a |= uint16_t(1) << (block_m + i * kClusterM);
    for (int i = 0; i < kClusterM; ++i) peers_b |= uint16_t(1) << (i + block_n * kClusterM);
    CUTLASS_PRAGMA_NO_UNROLL
    for (; k_tiles > 0; --k_tiles, ++k_tile, ++state) {
      pipeline.producer_acquire(state);
      auto* const barrier = pipeline.producer_get_barrier(state);
      uint8_t* const a = storage.stages + state.index() * bytes_of_stage;
      uint8_t* const b = a + kBytesA;
      int const k = k_tile * kTileK;
      if constexpr (kKMajorA) {
        constexpr int kRows = kTileM / kClusterN;
        load_box<kClusterN>(params.map_a, barrier, peers_a, a + block_n * kRows * kRowBytes, k, m + block_n * kRows);
      } else {
        constexpr int kRows = kTileK / kClusterN;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kTileM / kBlockM; ++i) {
          load_box<kClusterN>(params.map_a, barrier, peers_a, a + (i * kTileK + block_n * kRows) * kBlockM * 2, m + i * kBlockM,
                              k + block_n * kRows);
        }
      }
      if constexpr (kKMajorB) {
        int const rows = width / kClusterM;
        load_box<kClusterM>(params.map_b, barrier, peers_b, b + block_m * rows * kRowBytes, k, n + block_m * rows);
      } else {
        constexpr int kRows = kTileK / kClusterM;
        for (int i = 0; i < width / kBlockN; ++i) {
          load_box<kClusterM>(params.map_b, barrier, peers_b, b + (i * kTileK + block_m * kRows) * kBlockN * 2, n + i * kBlockN,
                              k + block_m * kRows);
        }
      }
    }
  }

  CUTLASS_DEVICE void load_tail(MainloopPipeline& pipeline, PipelineState state) const { pipeline.producer_tail(state); }

  /// Called by every consumer thread of a tile, all its sums zero: sets them to those of `k_tiles` (at least one) stages from
  /// `state` on, and gives these back. Calls `issued` before it waits for the last products.
  template <class Accumulators, class Issued>
  CUTLASS_DEVICE void mma(MainloopPipeline& pipeline, PipelineState state, Accumulators& accumulators, int k_tiles, int thread,
                          TensorStorage& storage, Params const& params, Issued const& issued) const {
    mma_of<kNarrowest>(pipeline, state, accumulators.data(), k_tiles, thread, storage, params, issued);
  }

 private:
  /// One box, for every CTA of `peers`.
  template <int count>
  CUTLASS_DEVICE static void load_box(CUtensorMap const& map, uint64_t* barrier, uint16_t peers, void* to, int inner, int outer) {
    constexpr uint64_t kHint = uint64_t(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    if constexpr (count == 1) {
      cute::SM90_TMA_LOAD_2D::copy(&map, barrier, kHint, to, inner, outer);
    } else {
      cute::SM90_TMA_LOAD_MULTICAST_2D::copy(&map, barrier, peers, kHint, to, inner, outer);
    }
  }

  static constexpr int kBlocksM = kTileM / (64 * warpgroups), kBlocksK = kTileK / 16;

  template <int width, class Issued>
  CUTLASS_DEVICE void mma_of(MainloopPipeline& pipeline, PipelineState state, float* sums, int k_tiles, int thread,
                             TensorStorage& storage, Params const& params, Issued const& issued) const {
    if constexpr (width < kWidest) {
      if (params.width != width) {
        return mma_of<width + kStep>(pipeline, state, sums, k_tiles, thread, storage, params, issued);
      }
    }
    using namespace cute;
    auto* const memory = reinterpret_cast<Element_*>(storage.stages);
    Tensor const a = make_tensor(make_smem_ptr(memory), SmemLayoutA{});                                    // (m, k)
    Tensor const b = make_tensor(make_smem_ptr(memory + kBytesA / int(sizeof(Element_))), SmemLayoutB{});  // (n, k)
    int const warp_group = __shfl_sync(0xffffffffu, thread / cutlass::NumThreadsPerWarpGroup, 0);
    auto const slice = TiledMma{}.get_slice(warp_group * cutlass::NumThreadsPerWarpGroup);
    // Descriptors know nothing of the width: the first `width` rows of b are multiplied.
    Tensor const first_a = slice.make_fragment_A(slice.partition_A(a));  // (1, blocks of 64 rows, blocks of 16 k)
    Tensor const first_b = slice.make_fragment_B(slice.partition_B(b));
    MMA_Atom<Instruction<width>> instruction;

    PipelineState in_use = state;
    auto const give_back = [&] { pipeline.consumer_release(in_use), ++in_use; };
    auto const multiply = [&](float* x, bool adds) {
      int const offset = state.index() * (stage_bytes(width) / 16);
      Tensor const stage_a = make_tensor(first_a.data() + offset, first_a.layout());
      Tensor const stage_b = make_tensor(first_b.data() + offset, first_b.layout());
      pipeline.consumer_wait(state);
      fence<width>(x);
      warpgroup_arrive();
      instruction.accumulate_ = adds ? GMMA::ScaleOut::One : GMMA::ScaleOut::Zero;
      CUTLASS_PRAGMA_UNROLL
      for (int k = 0; k < kBlocksK; ++k) {
        CUTLASS_PRAGMA_UNROLL
        for (int m = 0; m < kBlocksM; ++m) {
          Tensor block = make_tensor(x + m * (kWidest / 2), Layout<Int<width / 2>>{});
          gemm(instruction, stage_a(_, m, k), stage_b(_, 0, k), block);
        }
        instruction.accumulate_ = GMMA::ScaleOut::One;
      }
      warpgroup_commit_batch();
      ++state;
    };
    // The first products replace what is in the registers, and are in the loop with the others: where they are instructions of
    // their own, ptxas cannot always bring their registers and the loop's together, and then waits for each instruction (C7511).
    auto const chain = [&](float* x, int links, bool last) {
      CUTLASS_PRAGMA_NO_UNROLL
      for (int link = 0; link < links; ++link) {
        multiply(x, link > 0);
        warpgroup_wait<1>();
        fence<width>(x);
        if (link > 0) give_back();
      }
      if (last) issued();
      warpgroup_wait<0>();
      fence<width>(x);
      give_back();
    };

    if constexpr (takes_promotion(width)) {
      // Chains end in the first sums, as without promotion, and are collected in as many of those that the tile leaves unused.
      float* const collected = sums + kWidest / 4;
      auto const each = [&](auto const& use) {
        CUTLASS_PRAGMA_UNROLL
        for (int m = 0; m < kBlocksM; ++m) {
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < width / 2; ++i) use(m * (kWidest / 2) + i);
        }
      };
      int32_t const chain_iters = params.chain_iters > 0 ? params.chain_iters : k_tiles;
      while (k_tiles > chain_iters) {
        chain(sums, chain_iters, false);
        k_tiles -= chain_iters;
        each([&](int i) { collected[i] += sums[i]; });
      }
      chain(sums, k_tiles, true);
      each([&](int i) { sums[i] += collected[i]; });
    } else {
      chain(sums, k_tiles, true);
    }
  }

  /// Keeps the compiler from moving sums across the tensor core's work on them.
  template <int width>
  CUTLASS_DEVICE static void fence(float* sums) {
    CUTLASS_PRAGMA_UNROLL
    for (int m = 0; m < kBlocksM; ++m) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < width / 2; ++i) cute::warpgroup_fence_operand(sums[m * (kWidest / 2) + i]);
    }
  }
};

}  // namespace cutlass_sk
