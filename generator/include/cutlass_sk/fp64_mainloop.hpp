/// An fp64 main loop for our kernel layer: TMA into swizzled shared memory, Hopper's fp64 mma.sync out of it.
///
/// CUTLASS has wgmma collectives for Hopper, and wgmma knows no fp64. What a warp reads, and why without bank conflicts, is said in
/// fp64_fragments.h. Fragments are prefetched by one block of k, over the ends of stages: y's in a second set of registers, x's
/// into the registers of the rows that the tensor core has just read.
#pragma once
#include "cute/algorithm/functional.hpp"
#include "cute/atom/mma_atom.hpp"
#include "cute/tensor.hpp"
#include "cutlass/detail/layout.hpp"
#include "cutlass/gemm/gemm.h"
#include "cutlass_sk/fp64_fragments.h"
#include "cutlass_sk/warp_pipeline.hpp"

namespace cutlass_sk {

namespace detail {

/// The instruction of k = 4, 8 or 16, on fragments of slots: sums[4] += x[slot][half] * y[slot].
template <int k>
struct Fp64Mma;

template <>
struct Fp64Mma<4> {
  using Op = cute::SM90_16x8x4_F64F64F64F64_TN;
  template <class X, class Y>
  CUTLASS_DEVICE static void add(double* c, X const& x, Y const& y) {
    Op::fma(c[0], c[1], c[2], c[3], x(0, 0), x(0, 1), y(0), c[0], c[1], c[2], c[3]);
  }
};
template <>
struct Fp64Mma<8> {
  using Op = cute::SM90_16x8x8_F64F64F64F64_TN;
  template <class X, class Y>
  CUTLASS_DEVICE static void add(double* c, X const& x, Y const& y) {
    Op::fma(c[0], c[1], c[2], c[3], x(0, 0), x(0, 1), x(1, 0), x(1, 1), y(0), y(1), c[0], c[1], c[2], c[3]);
  }
};
template <>
struct Fp64Mma<16> {
  using Op = cute::SM90_16x8x16_F64F64F64F64_TN;
  template <class X, class Y>
  CUTLASS_DEVICE static void add(double* c, X const& x, Y const& y) {
    Op::fma(c[0], c[1], c[2], c[3], x(0, 0), x(0, 1), x(1, 0), x(1, 1), x(2, 0), x(2, 1), x(3, 0), x(3, 1), y(0), y(1), y(2), y(3),
            c[0], c[1], c[2], c[3]);
  }
};

}  // namespace detail

/// warps: consumer warps that share a tile. instruction_k: 4, 8 or 16. LayoutA, LayoutB: cutlass::layout::RowMajor or ColumnMajor.
template <class TileShape_, class ClusterShape_, int stages, int warps, int instruction_k, class LayoutA, class LayoutB>
class Fp64Mainloop {
 public:
  using TileShape = TileShape_;
  struct DispatchPolicy {
    static constexpr int Stages = stages;
    using ClusterShape = ClusterShape_;
  };
  using ElementA = double;
  using ElementB = double;
  using StrideA = cutlass::detail::TagToStrideA_t<LayoutA>;
  using StrideB = cutlass::detail::TagToStrideB_t<LayoutB>;
  using MainloopPipeline = WarpPipeline<stages>;
  using PipelineState = typename MainloopPipeline::PipelineState;
  static constexpr int NumProducerThreadEvents = 1;

  static constexpr int kTileM = cute::size<0>(TileShape{}), kTileN = cute::size<1>(TileShape{}),
                       kTileK = cute::size<2>(TileShape{});
  static constexpr bool kKMajorA = cute::is_static_v<decltype(cute::get<1>(StrideA{}))>;
  static constexpr bool kKMajorB = cute::is_static_v<decltype(cute::get<1>(StrideB{}))>;

  /// Whether b is x, as where its rows are contiguous: the pairs that x's registers take are then read as such, and stores of
  /// row-major c are whole lines.
  static constexpr bool kExchanged = !kKMajorB;
  static constexpr bool kNarrow = kKMajorA && kKMajorB;
  using OperandA = Fp64Operand<kKMajorA, kNarrow, kTileM, kTileK>;
  using OperandB = Fp64Operand<kKMajorB, kNarrow, kTileN, kTileK>;
  using OperandX = cute::conditional_t<kExchanged, OperandB, OperandA>;
  using OperandY = cute::conditional_t<kExchanged, OperandA, OperandB>;
  using Sums = Fp64Sums<OperandX, OperandY, kExchanged ? kTileN : kTileM, kExchanged ? kTileM : kTileN, warps>;

  /// Says how many threads and sums there are; Sums says which.
  using Mma = detail::Fp64Mma<instruction_k>;
  using TiledMma = cute::TiledMMA<cute::MMA_Atom<typename Mma::Op>,
                                  cute::Layout<cute::Shape<cute::Int<kExchanged ? Sums::kWarpsY : Sums::kWarpsX>,
                                                           cute::Int<kExchanged ? Sums::kWarpsX : Sums::kWarpsY>, cute::_1>>>;

 private:
  static constexpr int kBlockK = instruction_k > 8 ? instruction_k : 8;
  static constexpr int kBlocks = kTileK / kBlockK, kSlots = kBlockK / 4;
  static_assert(kTileK % (2 * kBlockK) == 0, "two sets of registers take turns within a stage");

  using Unsigned = cute::uint_bit_t<64>;
  template <bool k_major>
  using SmemAtom = cute::conditional_t<k_major, cute::GMMA::Layout_K_SW128_Atom<double>, cute::GMMA::Layout_MN_SW128_Atom<double>>;
  template <bool k_major>
  using Order = cute::conditional_t<k_major, cute::Step<cute::_1, cute::_2, cute::_3>, cute::Step<cute::_2, cute::_1, cute::_3>>;
  template <bool k_major, int rows>
  using SmemLayout = decltype(cute::tile_to_shape(
      SmemAtom<k_major>{}, cute::Shape<cute::Int<rows>, cute::Int<kTileK>, cute::Int<stages>>{}, Order<k_major>{}));
  using SmemLayoutA = SmemLayout<kKMajorA, kTileM>;
  using SmemLayoutB = SmemLayout<kKMajorB, kTileN>;

  /// Whether TMA, which follows CuTe's layout, puts an element where the fragments are read from.
  template <class Layout, class Operand>
  static constexpr bool placed(int row, int k, int stage) {
    int const bytes = int(Layout{}.layout_b()(row, k, stage)) * 8;
    return int(Layout{}.layout_a()(bytes)) == stage * Operand::kStageBytes + int(Operand::placed(row, k));
  }
  static_assert(placed<SmemLayoutA, OperandA>(kTileM - 3, kTileK - 2, 1) &&
                placed<SmemLayoutB, OperandB>(kTileN - 3, kTileK - 2, 1));
  static_assert(placed<SmemLayoutA, OperandA>(13, 11, 0) && placed<SmemLayoutB, OperandB>(13, 11, 0));

  template <int peers>
  using Load = cute::conditional_t<peers == 1, cute::SM90_TMA_LOAD, cute::SM90_TMA_LOAD_MULTICAST>;
  using LoadA = Load<cute::size<1>(ClusterShape_{})>;
  using LoadB = Load<cute::size<0>(ClusterShape_{})>;

  template <class Stride>
  static auto operand(double const* pointer, int rows, int k, int batch, Stride const& stride) {
    return cute::make_tensor(reinterpret_cast<Unsigned const*>(pointer),
                             cute::make_layout(cute::make_shape(rows, k, batch), stride));
  }
  template <class Tensor>
  static auto tma_a(Tensor const& tensor) {
    return cute::make_tma_copy_A_sm90(LoadA{}, tensor, SmemLayoutA{}(cute::_, cute::_, cute::Int<0>{}), TileShape{},
                                      ClusterShape_{});
  }
  template <class Tensor>
  static auto tma_b(Tensor const& tensor) {
    return cute::make_tma_copy_B_sm90(LoadB{}, tensor, SmemLayoutB{}(cute::_, cute::_, cute::Int<0>{}), TileShape{},
                                      ClusterShape_{});
  }

 public:
  struct TensorStorage {
    alignas(1024) double a[cute::cosize_v<SmemLayoutA>];
    alignas(1024) double b[cute::cosize_v<SmemLayoutB>];
  };
  using PipelineStorage = typename MainloopPipeline::SharedStorage;

  struct Arguments {
    ElementA const* ptr_A = nullptr;
    StrideA dA{};
    ElementB const* ptr_B = nullptr;
    StrideB dB{};
  };
  struct Params {
    decltype(tma_a(operand(nullptr, 0, 0, 0, StrideA{}))) tma_load_a;
    decltype(tma_b(operand(nullptr, 0, 0, 0, StrideB{}))) tma_load_b;
    uint32_t tma_transaction_bytes = OperandA::kStageBytes + OperandB::kStageBytes;
  };

  template <class ProblemShape>
  static Params to_underlying_arguments(ProblemShape const& problem_shape, Arguments const& arguments, void*) {
    auto const [m, n, k, batch] = cute::append<4>(problem_shape, 1);
    return {tma_a(operand(arguments.ptr_A, m, k, batch, arguments.dA)), tma_b(operand(arguments.ptr_B, n, k, batch, arguments.dB))};
  }

  CUTLASS_DEVICE static void prefetch_tma_descriptors(Params const& params) {
    cute::prefetch_tma_descriptor(params.tma_load_a.get_tma_descriptor());
    cute::prefetch_tma_descriptor(params.tma_load_b.get_tma_descriptor());
  }

  /// Called by one warp, one of whose threads loads: `k_tiles` k-tiles of tile (tile_m, tile_n) from k-tile `k_tile` on.
  template <class ProblemShape>
  CUTLASS_DEVICE void load(ProblemShape const& problem_shape, Params const& params, MainloopPipeline& pipeline, PipelineState state,
                           int tile_m, int tile_n, int k_tile, int k_tiles, uint32_t block_rank, TensorStorage& storage) const {
    using namespace cute;
    if (!elect_one_sync()) return;
    constexpr int kClusterM = size<0>(ClusterShape_{}), kClusterN = size<1>(ClusterShape_{});
    int const block_m = int(block_rank) % kClusterM, block_n = int(block_rank) / kClusterM;
    auto const [m, n, k, batch] = problem_shape;
    auto const a = local_tile(params.tma_load_a.get_tma_tensor(make_shape(m, k, batch)), TileShape{}, make_coord(tile_m, _, _),
                              Step<_1, X, _1>{})(_, _, _, 0);
    auto const b = local_tile(params.tma_load_b.get_tma_tensor(make_shape(n, k, batch)), TileShape{}, make_coord(_, tile_n, _),
                              Step<X, _1, _1>{})(_, _, _, 0);
    auto const slice_a = params.tma_load_a.get_slice(block_n);
    auto const slice_b = params.tma_load_b.get_slice(block_m);
    auto const from_a = slice_a.partition_S(a);
    auto const from_b = slice_b.partition_S(b);
    auto const to_a = slice_a.partition_D(make_tensor(make_smem_ptr(reinterpret_cast<Unsigned*>(storage.a)), SmemLayoutA{}));
    auto const to_b = slice_b.partition_D(make_tensor(make_smem_ptr(reinterpret_cast<Unsigned*>(storage.b)), SmemLayoutB{}));
    uint16_t peers_a = 0, peers_b = 0;
    for (int n = 0; n < kClusterN; ++n) peers_a |= uint16_t(1) << (block_m + n * kClusterM);
    for (int m = 0; m < kClusterM; ++m) peers_b |= uint16_t(1) << (m + block_n * kClusterM);
    CUTLASS_PRAGMA_NO_UNROLL
    for (; k_tiles > 0; --k_tiles, ++k_tile, ++state) {
      pipeline.producer_acquire(state);
      auto* const barrier = pipeline.producer_get_barrier(state);
      copy(params.tma_load_a.with(*barrier, peers_a), from_a(_, _, _, k_tile), to_a(_, _, _, state.index()));
      copy(params.tma_load_b.with(*barrier, peers_b), from_b(_, _, _, k_tile), to_b(_, _, _, state.index()));
    }
  }

  CUTLASS_DEVICE void load_tail(MainloopPipeline& pipeline, PipelineState state) const {
    if (cute::elect_one_sync()) pipeline.producer_tail(state);
  }

  /// Called by every consumer thread of a tile: sets its sums to those of `k_tiles` stages, and releases these. Calls `issued` at
  /// the end.
  template <class Accumulators, class Issued>
  CUTLASS_DEVICE void mma(MainloopPipeline& pipeline, PipelineState state, Accumulators& accumulators, int k_tiles, int thread,
                          TensorStorage& storage, Params const&, Issued const& issued) const {
    static_assert(cute::size(Accumulators{}) == Sums::kCount);
    double* const sums = accumulators.data();
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Sums::kCount; ++i) sums[i] = 0;

    int const warp = __shfl_sync(0xffffffffu, thread / 32, 0), lane = thread % 32;
    uint32_t const start_x =
        cute::cast_smem_ptr_to_uint(kExchanged ? storage.b : storage.a) + OperandX::start(Sums::first_group_x(warp), lane);
    uint32_t const start_y =
        cute::cast_smem_ptr_to_uint(kExchanged ? storage.a : storage.b) + OperandY::start(Sums::first_group_y(warp), lane);
    double x[Sums::kGroupsX][kSlots][2], y[2][Sums::kGroupsY][kSlots][2];

    // One stage. What follows it is the first block of the next one, unless this is the last.
    auto const multiply = [&](auto last) {
      PipelineState next = state;
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        bool const leaves = block == kBlocks - 1, loads = !(leaves && last);
        int const following = leaves ? 0 : block + 1;
        if (leaves && loads) {
          ++next;
          pipeline.consumer_wait(next);
        }
        uint32_t const from_x = start_x + uint32_t(next.index() * OperandX::kStageBytes);
        uint32_t const from_y = start_y + uint32_t(next.index() * OperandY::kStageBytes);
        if (loads) {
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < Sums::kGroupsY; ++i) read<OperandY>(y[(block + 1) % 2][i], from_y, i, following);
        }
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Sums::kGroupsX; ++i) {
          CUTLASS_PRAGMA_UNROLL
          for (int slot = 0; slot < kSlots; slot += instruction_k / 4) {
            CUTLASS_PRAGMA_UNROLL
            for (int j = 0; j < Sums::kGroupsY; ++j) {
              CUTLASS_PRAGMA_UNROLL
              for (int half = 0; half < 2; ++half) {
                Mma::add(
                    sums + Sums::index(i, j, 0, half, 0), [&](int s, int h) -> double const& { return x[i][slot + s][h]; },
                    [&](int s) -> double const& { return y[block % 2][j][slot + s][half]; });
              }
            }
          }
          if (loads) read<OperandX>(x[i], from_x, i, following);
        }
        // The last block's operands have been in registers since before its products.
        if (leaves) pipeline.consumer_release(state);
      }
      state = next;
    };

    pipeline.consumer_wait(state);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Sums::kGroupsY; ++i)
      read<OperandY>(y[0][i], start_y + uint32_t(state.index() * OperandY::kStageBytes), i, 0);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Sums::kGroupsX; ++i) read<OperandX>(x[i], start_x + uint32_t(state.index() * OperandX::kStageBytes), i, 0);
    CUTLASS_PRAGMA_NO_UNROLL
    for (; k_tiles > 1; --k_tiles) multiply(cute::false_type{});
    multiply(cute::true_type{});
    issued();
  }

 private:
  /// One group's 16 rows, one block of k.
  template <class Operand>
  CUTLASS_DEVICE static void read(double (&fragment)[kSlots][2], uint32_t from, int group, int block) {
    CUTLASS_PRAGMA_UNROLL
    for (int slot = 0; slot < kSlots; slot += 2) {
      int const eight = block * kBlockK / 8 + slot / 2;
      auto const address = [&](int s, int half) {
        return (from ^ Operand::flip(eight, s, half)) + Operand::step(group, eight, half);
      };
      auto* const at = &fragment[slot];
      if constexpr (Operand::kNarrow) {
        read(address(0, 0), at[0][0]);
        read(address(0, 1), at[0][1]);
        read(address(1, 0), at[1][0]);
        read(address(1, 1), at[1][1]);
      } else if constexpr (Operand::kKMajor) {
        read(address(0, 0), at[0][0], at[1][0]);
        read(address(0, 1), at[0][1], at[1][1]);
      } else {
        read(address(0, 0), at[0][0], at[0][1]);
        read(address(1, 0), at[1][0], at[1][1]);
      }
    }
  }

  /// Volatile: in the order of the barriers and of the products.
  CUTLASS_DEVICE static void read(uint32_t address, double& first, double& second) {
    asm volatile("ld.shared.v2.f64 {%0, %1}, [%2];" : "=d"(first), "=d"(second) : "r"(address));
  }
  CUTLASS_DEVICE static void read(uint32_t address, double& value) {
    asm volatile("ld.shared.f64 %0, [%1];" : "=d"(value) : "r"(address));
  }
};

}  // namespace cutlass_sk
