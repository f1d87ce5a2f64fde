/// The planner's decision for a new problem: `decide` of cutlass_sk/planner.py, step by step, over the same numbers. A test holds
/// the two together; what is meant by a line is said there and in cutlass_sk/model.py.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace cutlass_sk {

/// `model.Profile`, packed by `planner.KernelSet`.
struct PackedProfile {
  double a, b, c, d, d_parallel, e, h, r, u;
  double load_a_us, load_b_us, power_us, dram_us, alone, crowded, floor_us, rows16, rows32, rows64;
  double span_m, span_n, tile_k, slots, half, twice, persistent, fragments;
  double clusters[4][2];  ///< peers, tiles that run at a time; 0 peers: none
  double chains[2][2];    ///< c and floor_us where chains of sums end after one k-tile, and after two
};

struct Decision {
  double time_us;
  int64_t kernel, shared, units, splits, in_cluster;
};

/// As many as `Decider` takes.
inline constexpr size_t kMostKernels = 128;

class Decider {
 public:
  /// `chained`: chains of sums end after a k-tile if all tiles run at once, else after two, where the kernel can end them.
  Decider(PackedProfile const* kernels, size_t count, int64_t m, int64_t n, int64_t k, int64_t moved, int64_t row_a, int64_t row_b,
          bool chained)
      : kernels_(kernels), count_(count), m_(m), n_(n), k_(k), moved_(moved), row_a_(row_a), row_b_(row_b), chained_(chained) {}

  Decision decide() {
    // Every kernel data-parallel first: that is quickly said, and leaves few kernels whose shared tiles may be faster still.
    best_ = {INFINITY, -1, 0, 0, 1, 0};
    std::pair<double, size_t> order[kMostKernels];
    size_t left = 0;
    for (size_t i = 0; i < count_; ++i) {
      PackedProfile const& p = kernels_[i];
      int64_t const tiles = tiles_of(p), iters = iters_of(p), slots = int64_t(p.slots);
      score(i, tiles, iters, 0, 0, 1, false);
      if (tiles > slots ? tiles % slots == 0 : iters == 1) continue;
      double const work = double(tiles * iters);
      double const floor_us = chained_ ? p.chains[tiles > slots][1] : p.floor_us;
      double main = floor_us * work + (tiles > slots ? p.e * double(tiles / slots - 1) : 0), power = p.power_us * work,
             dram = p.dram_us * double(moved_);
      main *= main;
      power *= power;
      double const least = p.a + least_fixup(p, tiles > slots) + std::sqrt(std::sqrt(main * main + power * power) + dram * dram);
      order[left] = {least * (1 - 1e-12), i};
      left += order[left].first < best_.time_us;
    }
    std::sort(order, order + left);
    for (size_t i = 0; i < left && order[i].first < best_.time_us; ++i) share(order[i].second);
    return best_;
  }

 private:
  PackedProfile const* kernels_;
  size_t count_;
  int64_t m_, n_, k_, moved_, row_a_, row_b_;
  bool chained_;
  Decision best_{};

  static int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
  int64_t tiles_of(PackedProfile const& p) const { return ceil_div(m_, int64_t(p.span_m)) * ceil_div(n_, int64_t(p.span_n)); }
  int64_t iters_of(PackedProfile const& p) const { return ceil_div(k_, int64_t(p.tile_k)); }

  /// planner.free_choices after the first
  void share(size_t kernel) {
    PackedProfile const& p = kernels_[kernel];
    int64_t const tiles = tiles_of(p), iters = iters_of(p), slots = int64_t(p.slots);
    int64_t const max_shared = std::min<int64_t>(tiles, INT32_MAX / iters);
    if (tiles > slots) {
      int64_t const rest = tiles % slots;
      if (rest != 0 && rest + slots <= max_shared) {
        score(kernel, tiles, iters, rest + slots, slots, 1, false);
        score(kernel, tiles, iters, rest, std::min(slots, rest * iters), 1, false);
      }
      return;
    }
    if (tiles > max_shared || iters == 1) return;
    int64_t const most = std::min(slots / tiles, iters);
    for (auto const& cluster : p.clusters) {
      int64_t const peers = int64_t(cluster[0]);
      if (peers != 0 && tiles <= int64_t(cluster[1]) && peers <= iters)
        score(kernel, tiles, iters, tiles, tiles * peers, peers, true);
    }
    int64_t last = 1;
    for (int64_t splits : {int64_t(2), int64_t(3), int64_t(4), int64_t(8), int64_t(16), most}) {
      if (splits > most) continue;
      splits = ceil_div(iters, ceil_div(iters, splits));
      if (splits > last) {
        score(kernel, tiles, iters, tiles, tiles * splits, splits, false);
        last = splits;
      }
    }
    if (tiles * most < slots) score(kernel, tiles, iters, tiles, std::min(slots, tiles * iters), 1, false);
  }

  /// work.load and model.Profile.time_us
  void score(size_t kernel, int64_t tiles, int64_t iters, int64_t shared, int64_t units, int64_t splits, bool in_cluster) {
    PackedProfile const& p = kernels_[kernel];
    int64_t const slots = int64_t(p.slots);
    int64_t most, finished, last_iters, active, peers = 1;
    bool long_shares = false;
    if (units == 0) {
      finished = ceil_div(tiles, slots);
      most = finished * iters;
      last_iters = iters;
      active = (tiles - 1) % slots + 1;
    } else {
      int64_t const share = splits > 1 ? ceil_div(iters, splits) : ceil_div(shared * iters, units);
      peers = splits > 1 ? splits : shared == units ? 1 : 2 + std::max<int64_t>(0, iters - 2) / (shared * iters / units);
      peers = std::min(peers, units);
      long_shares = share >= iters;
      int64_t const whole = tiles - shared;
      finished = ceil_div(units + whole, slots);
      most = share + (finished - 1) * iters;
      if (whole != 0 && units < slots) {
        int64_t const others = ceil_div(whole, slots);
        most = std::max(most, others * iters);
        finished = std::max(finished, others);
      }
      last_iters = finished == 1 ? most : 0;
      active = finished == 1 ? units + whole : slots;
    }
    double loads = p.load_a_us * row_cost(p, row_a_) + p.load_b_us * row_cost(p, row_b_);
    loads *= last_iters != 0 ? double(most) - double(last_iters) * (1 - share_of(p, active, finished == 1)) : double(most);
    double const c = chained_ ? p.chains[tiles > slots][0] : p.c;
    double mma = c * double(most), power = p.power_us * double(tiles * iters), dram = p.dram_us * double(moved_);
    mma *= mma;
    loads *= loads;
    power *= power;
    double main = std::sqrt(std::sqrt(mma * mma + loads * loads)) + p.e * double(finished - 1);
    main *= main;
    double time_us = p.a + std::sqrt(std::sqrt(main * main + power * power) + dram * dram);
    bool const separate = units > 2 * shared && double(units) + double(shared) * p.fragments <= 2 * p.slots;
    if (peers > 1) time_us += fixup(p, peers, long_shares, in_cluster, separate);
    if (time_us < best_.time_us) best_ = {time_us, int64_t(kernel), shared, units, splits, in_cluster};
  }

  static double row_cost(PackedProfile const& p, int64_t row_bytes) {
    if (row_bytes % 128 == 0) return 1.0;
    return 1.0 + (row_bytes % 64 == 0 ? p.rows64 : row_bytes % 32 == 0 ? p.rows32 : p.rows16);
  }

  static double share_of(PackedProfile const& p, int64_t active, bool one_wave) {
    if (p.twice == 0) return double(active) <= p.half ? p.alone : 1.0;
    if (one_wave) return p.alone * (1 + p.crowded * double(active) / p.half);
    return std::min(1.0, p.alone + (1 - p.alone) * double(active) / p.half);
  }

  /// No shared tile costs less; with `several` waves there are no clusters that share one.
  static double least_fixup(PackedProfile const& p, bool several) {
    if (p.persistent == 0) return p.b + std::min(p.d, p.d_parallel);
    double const least = std::min(p.h, p.b + p.d);
    return several || p.clusters[0][0] == 0 ? least : std::min(least, p.r);
  }

  static double fixup(PackedProfile const& p, int64_t peers, bool long_shares, bool in_cluster, bool separate) {
    if (in_cluster) return p.r + p.u * (std::log2(double(peers)) - 1);
    if (p.persistent != 0) return long_shares ? p.h : p.b + p.d * std::log2(double(peers));
    return p.b + (separate ? p.d_parallel : p.d) * double(peers - 1);
  }
};

}  // namespace cutlass_sk
