/// CUTLASS's TMA epilogue for tiles that are stored some columns at a time.
#pragma once
#include "cutlass/epilogue/collective/collective_builder.hpp"

namespace cutlass_sk {

namespace detail {

template <class Epilogue, int stages_c, int stages_d>
struct WithStages;
template <class... Rest, int c, int d, int fragment, bool reuse, bool delay, int stages_c, int stages_d>
struct WithStages<cutlass::epilogue::collective::CollectiveEpilogue<
                      cutlass::epilogue::Sm90TmaWarpSpecialized<c, d, fragment, reuse, delay>, Rest...>,
                  stages_c, stages_d> {
  using type = cutlass::epilogue::collective::CollectiveEpilogue<
      cutlass::epilogue::Sm90TmaWarpSpecialized<stages_c, stages_d, fragment, reuse, delay>, Rest...>;
};

}  // namespace detail

/// How many columns are stored at a time; widths of tiles are multiples of it.
constexpr int kEpilogueColumns = 32;

/// The builder sees `kEpilogueColumns` columns alone and would give them one buffer; here the next ones are written while they
/// are stored, as in a tile that it knows in whole.
template <int tile_m, int tile_k, class ClusterShape, class ElementC, class LayoutC, bool cooperative>
using ColumnEpilogue = typename detail::WithStages<
    typename cutlass::epilogue::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp,
        cute::Shape<cute::Int<tile_m>, cute::Int<kEpilogueColumns>, cute::Int<tile_k>>, ClusterShape,
        cutlass::epilogue::collective::EpilogueTileAuto, float, float, ElementC, LayoutC, 16 / int(sizeof(ElementC)), ElementC,
        LayoutC, 16 / int(sizeof(ElementC)),
        cute::conditional_t<cooperative, cutlass::epilogue::TmaWarpSpecializedCooperative, cutlass::epilogue::TmaWarpSpecialized>,
        cutlass::epilogue::fusion::LinearCombination<ElementC, float, ElementC, float>>::CollectiveOp,
    4, 2>::type;

/// What an epilogue leaves of a CTA's shared memory for stages of operands, in bytes, beside the barriers.
template <class Epilogue, int ctas_per_sm>
constexpr int kStageMemory = (233472 / ctas_per_sm - 1024 - 1024 - int(sizeof(typename Epilogue::SharedStorage))) / 1024 * 1024;

}  // namespace cutlass_sk
