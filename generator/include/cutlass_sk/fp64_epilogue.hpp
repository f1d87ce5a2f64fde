/// The fp64 epilogue: c = alpha * sums + beta * c, straight between registers and global memory.
///
/// A thread's sums come in neighbouring pairs (fp64_fragments.h). They are moved as 16 bytes where c allows it, else one by one: c
/// may have any leading dimension and any address a double may have.
#pragma once
#include "cute/tensor.hpp"
#include "cutlass/detail/layout.hpp"
#include "cutlass/pipeline/pipeline.hpp"
#include "cutlass_sk/fp64_fragments.h"

namespace cutlass_sk {

/// Stands where a collective has a pipeline and this one has none.
struct NoPipeline {
  static constexpr uint32_t Stages = 0;
  enum class ThreadCategory { NonParticipant, Producer, Consumer };
  struct SharedStorage {};
  struct Params {
    ThreadCategory role = ThreadCategory::NonParticipant;
    uint32_t dst_blockid = 0, producer_arv_count = 0, consumer_arv_count = 0;
    bool always_wait = false;
  };
  CUTLASS_DEVICE NoPipeline(SharedStorage&, Params const&) {}
  CUTLASS_DEVICE explicit NoPipeline(Params const&) {}
};

template <class Mainloop, class LayoutC>
class Fp64Epilogue {
 public:
  using ElementC = double;
  using StrideC = cutlass::detail::TagToStrideC_t<LayoutC>;
  using StrideD = StrideC;
  using LoadPipeline = NoPipeline;
  using StorePipeline = NoPipeline;
  using LoadPipelineState = cutlass::PipelineState<0>;
  using StorePipelineState = cutlass::PipelineState<0>;
  using PipelineStorage = NoPipeline::SharedStorage;
  struct TensorStorage {};
  static constexpr bool RequiresTransactionBytes = false;
  static constexpr int kAlignmentBytes = sizeof(double);

  struct Arguments {
    struct Thread {
      double alpha = 1, beta = 0;
    } thread;
    double const* ptr_C = nullptr;
    StrideC dC{};
    double* ptr_D = nullptr;
    StrideD dD{};
  };
  struct Params {
    double alpha, beta;
    double* c;        ///< source and destination
    int64_t leading;  ///< from one line of contiguous elements to the next
    bool pairs;       ///< whether every second element of a line lies on 16 bytes

    void set(double new_alpha, double new_beta, double* new_c) {
      alpha = new_alpha;
      beta = new_beta;
      c = new_c;
      pairs = leading % 2 == 0 && reinterpret_cast<uintptr_t>(c) % 16 == 0;
    }
  };

  template <class ProblemShape>
  static Params to_underlying_arguments(ProblemShape const&, Arguments const& arguments, void*) {
    int64_t const leading = kRowMajor ? int64_t(cute::get<0>(arguments.dD)) : int64_t(cute::get<1>(arguments.dD));
    Params params{0, 0, nullptr, leading, false};
    params.set(arguments.thread.alpha, arguments.thread.beta, arguments.ptr_D);
    return params;
  }

  CUTLASS_DEVICE static void prefetch_tma_descriptors(Params const&) {}
  template <class TileShape>
  CUTLASS_DEVICE static constexpr int get_load_pipe_increment(TileShape) {
    return 0;
  }
  template <class TileShape>
  CUTLASS_DEVICE static constexpr int get_store_pipe_increment(TileShape) {
    return 0;
  }

  CUTLASS_DEVICE Fp64Epilogue(Params const& params, TensorStorage&) : params_(params) {}

  CUTLASS_DEVICE bool is_producer_load_needed() const { return false; }
  template <class... Anything>
  CUTLASS_DEVICE LoadPipelineState load(LoadPipeline&, LoadPipelineState state, Anything&&...) const {
    return state;
  }
  CUTLASS_DEVICE void load_tail(LoadPipeline&, LoadPipelineState) const {}

  template <class ProblemShape, class TileShape, class Coordinates, class Accumulators, class TiledMma>
  CUTLASS_DEVICE auto store(LoadPipeline&, LoadPipelineState load_state, StorePipeline&, StorePipelineState store_state,
                            ProblemShape const& problem_shape, TileShape, Coordinates const& coordinates,
                            Accumulators const& accumulators, TiledMma, int thread, TensorStorage&) const {
    asm volatile("" : "+r"(thread));  // lest what follows is computed, and kept in registers, before the main loop
    constexpr int kTileM = cute::size<0>(TileShape{}), kTileN = cute::size<1>(TileShape{});
    int const tile_m = cute::get<0>(coordinates) * kTileM, tile_n = cute::get<1>(coordinates) * kTileN;
    int const m = cute::get<0>(problem_shape) - tile_m, n = cute::get<1>(problem_shape) - tile_n;  // left from the tile's corner on
    int const warp = thread / 32, lane = thread % 32;
    int const x = Sums::first_x(warp, lane), y = Sums::first_y(warp, lane);
    int const line = kAlongX ? y : x, position = kAlongX ? x : y;
    Place place{params_.c + ((kRowMajor ? tile_m : tile_n) + line) * params_.leading + (kRowMajor ? tile_n : tile_m) + position,
                (kRowMajor ? m : n) - line, (kRowMajor ? n : m) - position};
    double const* const sums = accumulators.data();
    bool const whole = m >= kTileM && n >= kTileN && params_.pairs && kDistance == 1;
    if (whole && params_.beta == 0) {
      finish<true, false>(place, sums);
    } else if (whole) {
      finish<true, true>(place, sums);
    } else {
      finish<false, true>(place, sums);
    }
    return cute::make_tuple(load_state, store_state);
  }
  CUTLASS_DEVICE auto store_tail(LoadPipeline&, LoadPipelineState load_state, StorePipeline&,
                                 StorePipelineState store_state) const {
    return cute::make_tuple(load_state, store_state);
  }

 private:
  using Sums = typename Mainloop::Sums;
  static constexpr bool kRowMajor = cute::is_static_v<decltype(cute::get<1>(StrideC{}))>;
  static constexpr bool kAlongX = kRowMajor == Mainloop::kExchanged;
  static constexpr int kDistance = kAlongX ? Sums::kDistanceX : 1;

  /// A thread's first sum in c, and how many lines and positions c has from there on.
  struct Place {
    double* first;
    int lines, length;
  };

  /// A line has pairs in each of its groups; along y two of them.
  static constexpr int kLineGroups = kAlongX ? Sums::kGroupsY : Sums::kGroupsX, kGroups = kAlongX ? Sums::kGroupsX : Sums::kGroupsY;
  static constexpr int kLines = kAlongX ? 4 : 2, kPairs = 4 / kLines;

  Params const& params_;

  /// whole: all of the tile is c's, and can be moved in pairs. A group of lines is read before it is written.
  template <bool whole, bool may_add>
  CUTLASS_DEVICE void finish(Place const& place, double const* sums) const {
    CUTLASS_PRAGMA_UNROLL
    for (int group = 0; group < kLineGroups; ++group) {
      double2 old[kLines][kGroups][kPairs] = {};
      if (may_add && (whole || params_.beta != 0)) {
        visit<whole>(place, group, [&](double const* at, bool second, int line, int i, int pair, int, int) {
          old[line][i][pair] = whole || (params_.pairs && kDistance == 1 && second)
                                   ? *reinterpret_cast<double2 const*>(at)
                                   : make_double2(at[0], second ? at[kDistance] : 0.0);
        });
      }
      visit<whole>(place, group, [&](double* at, bool second, int line, int i, int pair, int first_sum, int second_sum) {
        double2 value = make_double2(params_.alpha * sums[first_sum], params_.alpha * sums[second_sum]);
        if (may_add) {
          value.x += params_.beta * old[line][i][pair].x;
          value.y += params_.beta * old[line][i][pair].y;
        }
        if (whole || (params_.pairs && kDistance == 1 && second)) {
          *reinterpret_cast<double2*>(at) = value;
        } else {
          at[0] = value.x;
          if (second) at[kDistance] = value.y;
        }
      });
    }
  }

  /// The pairs of a group of lines that are in c: where, whether the second element is, which pair this is, and which sums.
  template <bool whole, class Use>
  CUTLASS_DEVICE void visit(Place const& place, int group, Use const& use) const {
    CUTLASS_PRAGMA_UNROLL
    for (int line = 0; line < kLines; ++line) {
      auto const pair_of = [&](int i, int pair, int element) {
        return Sums::pair(kAlongX, kAlongX ? i : group, kAlongX ? group : i, line * kPairs + pair, element);
      };
      auto const head = pair_of(0, 0, 0);
      int const step = kAlongX ? Sums::step_y(group, head.half_y, head.column) : Sums::step_x(group, head.half_x);
      if (!whole && step >= place.lines) continue;
      double* const start = place.first + step * params_.leading;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kGroups; ++i) {
        CUTLASS_PRAGMA_UNROLL
        for (int pair = 0; pair < kPairs; ++pair) {
          auto const first = pair_of(i, pair, 0), second = pair_of(i, pair, 1);
          int const offset = kAlongX ? Sums::step_x(i, first.half_x) : Sums::step_y(i, first.half_y, first.column);
          if (whole || offset < place.length) {
            use(start + offset, whole || offset + kDistance < place.length, line, i, pair, first.index(), second.index());
          }
        }
      }
    }
  }
};

}  // namespace cutlass_sk
