/// The fp64 epilogue: c = alpha * sums + beta * c, straight between registers and global memory.
///
/// A thread's sums come in neighbouring pairs (fp64_fragments.h). They are moved as 16 bytes where c allows it, else one by one: c
/// may have any leading dimension and any address a double may have.
#pragma once
#include "cute/tensor.hpp"
#include "cutlass/detail/layout.hpp"
#include "cutlass_sk/fp64_fragments.h"

namespace cutlass_sk {

template <class Mainloop, class LayoutC>
class Fp64Epilogue {
 public:
  using ElementC = double;
  using StrideC = cutlass::detail::TagToStrideC_t<LayoutC>;
  using StrideD = StrideC;
  struct TensorStorage {};
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

  CUTLASS_DEVICE Fp64Epilogue(Params const& params, TensorStorage&) : params_(params) {}

  /// Nothing about a tile is worth finding out before its sums are there.
  struct Target {};
  CUTLASS_DEVICE static Target target(int, int, int) { return {}; }

  /// Called by every consumer thread of the tile.
  template <class ProblemShape, class Accumulators>
  CUTLASS_DEVICE void store(ProblemShape const& problem_shape, Accumulators const& accumulators, int tile_m, int tile_n,
                            int thread) const {
    asm volatile("" : "+r"(thread));  // lest what follows is computed, and kept in registers, before the main loop
    constexpr int kTileM = Mainloop::kTileM, kTileN = Mainloop::kTileN;
    tile_m *= kTileM;
    tile_n *= kTileN;
    int const m = cute::get<0>(problem_shape) - tile_m, n = cute::get<1>(problem_shape) - tile_n;  // left from the tile's corner on
    int const warp = thread / 32, lane = thread % 32;
    int const x = Sums::first_x(warp, lane), y = Sums::first_y(warp, lane);
    int const line = kAlongX ? y : x, position = kAlongX ? x : y;
    Place place{params_.c + ((kRowMajor ? tile_m : tile_n) + line) * params_.leading + (kRowMajor ? tile_n : tile_m) + position,
                (kRowMajor ? m : n) - line, (kRowMajor ? n : m) - position};
    double const* const sums = accumulators.data();
    bool const whole = m >= kTileM && n >= kTileN && params_.pairs && kDistance == 1;
    if (whole && params_.beta == 0) {
      write<true, false>(place, sums);
    } else if (whole) {
      write<true, true>(place, sums);
    } else {
      write<false, true>(place, sums);
    }
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
  CUTLASS_DEVICE void write(Place const& place, double const* sums) const {
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
