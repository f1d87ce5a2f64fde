/// Who computes what: the Stream-K work line, its shares and their order. Plain integer arithmetic, the same on host and device;
/// `cutlass_sk/schedule.py` is its twin in Python, and a test holds the two together.
///
/// The first `sk_work_tiles` work tiles form a line of iterations, cut into `sk_units` contiguous shares; the other work tiles are
/// computed whole. Positions 0 .. sk_units - 1 are the shares, the positions after them the data-parallel work tiles; worker x
/// (a cluster) takes positions x, x + workers, x + 2 workers, ...
///
/// A share is walked backwards. The piece of a tile that holds the tile's last iteration finishes the tile. The units that meet in
/// a tile add up their partial sums as a tree of arity four with the finisher at its root, in a fixed order, so that the time grows
/// with the logarithm of their number. Every edge leads to a lower unit: a unit waits for lower ones alone. There is a worker for
/// every unit, and hardware starts CTAs in order, so the lowest unfinished unit never waits for one that has not started: no set of
/// concurrent kernels can deadlock the wait.
#pragma once
#include <stdint.h>

#if defined(__CUDACC__)
#define CUTLASS_SK_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define CUTLASS_SK_HOST_DEVICE inline
#endif

namespace cutlass_sk {

/// A part of one work tile's iterations, run by one worker.
struct Segment {
  int32_t position = 0;   ///< where in the order of work
  int32_t unit = -1;      ///< the share it belongs to; -1: a whole data-parallel tile
  int32_t work_tile = 0;  ///< in raster order
  int32_t k_begin = 0, k_end = 0;
  int32_t remaining = 0;  ///< iterations of the share that lie before this segment, still to be walked

  CUTLASS_SK_HOST_DEVICE bool is_valid() const { return k_end > k_begin; }
};

/// `Divmod(int divisor)` with `void operator()(int& quotient, int& remainder, int dividend) const`; cutlass::FastDivmod on the
/// device.
template <class Divmod>
struct StreamKSchedule {
  int32_t workers = 0;
  int32_t sk_work_tiles = 0, sk_units = 0, positions = 0;
  int32_t iters_per_tile = 1, splits = 1;
  int32_t share_iters = 1, long_shares = 0;  ///< of the line, or of one tile if splits > 1
  int32_t minor_tiles = 1;                   ///< work tiles across the strips
  int32_t raster_swizzle = 1;
  bool raster_along_n = false;
  bool in_clusters = false;  ///< the parts of a split tile are one cluster, side by side in the order of work
  Divmod by_iters_per_tile{1}, by_share{1}, by_long_share{1}, by_parts{1}, by_strip{1}, by_width{1}, by_last_width{1};

  StreamKSchedule() = default;

  /// All counts in work tiles; `valid()` must hold for them.
  StreamKSchedule(int32_t workers_, int32_t work_tiles_m, int32_t work_tiles_n, int32_t iters, int32_t sk_tiles, int32_t units,
                  int32_t splits_, bool along_n, int32_t swizzle, bool in_clusters_ = false)
      : workers(workers_),
        sk_work_tiles(sk_tiles),
        sk_units(units),
        positions(units + work_tiles_m * work_tiles_n - sk_tiles),
        iters_per_tile(iters),
        splits(splits_),
        raster_along_n(along_n),
        in_clusters(in_clusters_) {
    if (units > 0) {
      int32_t const line = splits > 1 ? iters : sk_tiles * iters;
      int32_t const shares = splits > 1 ? splits : units;
      share_iters = line / shares;
      long_shares = line % shares;
      by_share = Divmod(share_iters);
      by_long_share = Divmod(share_iters + 1);
      by_parts = Divmod(in_clusters ? splits : sk_tiles);
    }
    int32_t const major = along_n ? work_tiles_n : work_tiles_m;
    minor_tiles = along_n ? work_tiles_m : work_tiles_n;
    raster_swizzle = swizzle < minor_tiles ? swizzle : minor_tiles;
    by_iters_per_tile = Divmod(iters);
    by_strip = Divmod(raster_swizzle * major);
    by_width = Divmod(raster_swizzle);
    int32_t const last = minor_tiles % raster_swizzle;
    by_last_width = Divmod(last ? last : raster_swizzle);
  }

  /// Whether the counts make a schedule that covers every iteration once, within 32-bit arithmetic.
  static bool valid(int64_t workers, int64_t work_tiles_m, int64_t work_tiles_n, int64_t iters, int64_t sk_tiles, int64_t units,
                    int64_t splits, int64_t swizzle) {
    constexpr int64_t limit = INT32_MAX;
    if (workers < 1 || work_tiles_m < 1 || work_tiles_n < 1 || iters < 1 || splits < 1 || swizzle < 1) return false;
    if (work_tiles_m > limit || work_tiles_n > limit || work_tiles_m * work_tiles_n > limit) return false;
    if (sk_tiles < 0 || sk_tiles > work_tiles_m * work_tiles_n || (sk_tiles == 0) != (units == 0)) return false;
    if (iters >= limit || sk_tiles * iters > limit || units < 0 || units > sk_tiles * iters) return false;
    if (units > workers || (splits > 1 && (splits > iters || units != sk_tiles * splits))) return false;
    bool const few_peers =
        splits > 1 ? splits <= kMaxPeers : units <= kMaxPeers || iters / (sk_tiles * iters / units) + 2 <= kMaxPeers;
    return few_peers && workers + units + work_tiles_m * work_tiles_n <= limit;
  }

  /// The first segment of the work at `position`; invalid past the end.
  CUTLASS_SK_HOST_DEVICE Segment begin(int32_t position) const {
    Segment segment;
    segment.position = position;
    if (position >= positions) return segment;
    if (position >= sk_units) {
      segment.work_tile = sk_work_tiles + (position - sk_units);
      segment.k_end = iters_per_tile;
      return segment;
    }
    if (splits > 1) {
      int part, tile;
      if (in_clusters) {
        by_parts(tile, part, position);
      } else {
        by_parts(part, tile, position);
      }
      segment.unit = tile * splits + part;
      segment.work_tile = tile;
      segment.k_begin = part * share_iters + min_of(part, long_shares);
      segment.k_end = segment.k_begin + share_iters + (part < long_shares);
      return segment;
    }
    segment.unit = position;
    int32_t const line_begin = position * share_iters + min_of(position, long_shares);
    int32_t const iters = share_iters + (position < long_shares);
    int tile, last;
    by_iters_per_tile(tile, last, line_begin + iters - 1);
    segment.work_tile = tile;
    segment.k_end = last + 1;
    segment.remaining = iters;
    return take(segment);
  }

  /// The segment after `segment` for the same worker.
  CUTLASS_SK_HOST_DEVICE Segment next(Segment segment) const {
    if (segment.remaining == 0) return begin(segment.position + workers);
    segment.work_tile -= 1;
    segment.k_end = iters_per_tile;
    return take(segment);
  }

  /// Children of a tree node: three a level, so that n / 3 is the level of the n-th.
  static constexpr int32_t kMaxChildren = 30;
  static constexpr int32_t kMaxPeers = 1 << 20;

  CUTLASS_SK_HOST_DEVICE bool is_finisher(Segment const& segment) const { return segment.k_end == iters_per_tile; }
  CUTLASS_SK_HOST_DEVICE int32_t cluster_peers() const { return in_clusters ? splits : 1; }
  CUTLASS_SK_HOST_DEVICE bool needs_fixup(Segment const& segment) const {
    return segment.k_end - segment.k_begin != iters_per_tile;
  }

  /// The unit whose partial sums the unit of a shared tile's `segment` adds as its n-th; -1 if it has no n-th. A unit without any
  /// is a leaf: it stores its own sums at once.
  CUTLASS_SK_HOST_DEVICE int32_t child(Segment const& segment, int32_t n) const {
    int32_t const first = first_unit(segment.work_tile), last = last_unit(segment.work_tile);
    int32_t const node = last - segment.unit;  // 0 is the finisher, at the root
    int32_t const stride = int32_t(1) << (2 * (n / 3));
    int32_t const offset = stride * (n % 3 + 1);
    return n < kMaxChildren && (node & (4 * stride - 1)) == 0 && offset <= segment.unit - first ? segment.unit - offset : -1;
  }
  CUTLASS_SK_HOST_DEVICE int32_t first_unit(int32_t work_tile) const {
    return splits > 1 ? work_tile * splits : unit_of(work_tile * iters_per_tile);
  }
  CUTLASS_SK_HOST_DEVICE int32_t last_unit(int32_t work_tile) const {
    return splits > 1 ? work_tile * splits + splits - 1 : unit_of(work_tile * iters_per_tile + iters_per_tile - 1);
  }

  /// Raster order: strips `raster_swizzle` work tiles wide, visited row by row. The last strip is as narrow as it needs to be.
  CUTLASS_SK_HOST_DEVICE void coordinates(int32_t work_tile, int32_t& work_m, int32_t& work_n) const {
    int strip, rest, major, minor;
    by_strip(strip, rest, work_tile);
    int32_t const first = strip * raster_swizzle;
    if (first + raster_swizzle <= minor_tiles) {
      by_width(major, minor, rest);
    } else {
      by_last_width(major, minor, rest);
    }
    minor += first;
    work_m = raster_along_n ? minor : major;
    work_n = raster_along_n ? major : minor;
  }

 private:
  CUTLASS_SK_HOST_DEVICE static int32_t min_of(int32_t x, int32_t y) { return x < y ? x : y; }

  /// The unit that owns an iteration of the line (splits == 1).
  CUTLASS_SK_HOST_DEVICE int32_t unit_of(int32_t iter) const {
    int32_t const long_iters = long_shares * (share_iters + 1);
    int unit, rest;
    if (iter < long_iters) {
      by_long_share(unit, rest, iter);
      return unit;
    }
    by_share(unit, rest, iter - long_iters);
    return long_shares + unit;
  }

  /// Cuts the next piece off the end of a share: at most the part of `work_tile` that ends at `k_end`.
  CUTLASS_SK_HOST_DEVICE Segment take(Segment segment) const {
    int32_t const iters = min_of(segment.k_end, segment.remaining);
    segment.k_begin = segment.k_end - iters;
    segment.remaining -= iters;
    return segment;
  }
};

}  // namespace cutlass_sk
