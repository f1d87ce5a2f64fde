/// Fix-up between the peers of a tile that run in one cluster: partial sums go through distributed shared memory.
///
/// The columns of a tile are dealt out to its peers, an epilogue subtile at a time. Each peer sends every other one the sums that
/// the other is to store, adds up what it receives, always in the order of ranks, and stores its own part. Peers are resident
/// together, so they may wait for each other, and nothing goes through global memory.
#pragma once
#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/cutlass.h"

namespace cutlass_sk {

/// `warpgroups` share a tile; each has `subtiles` runs of `registers` accumulators a thread.
template <int warpgroups, int subtiles, int registers>
class ClusterFixup {
 public:
  static constexpr int kVectors = registers / 4;
  static constexpr int kThreads = cutlass::NumThreadsPerWarpGroup;
  static constexpr int kRunBytes = registers * 4 * kThreads;  ///< a warpgroup's part of a subtile
  static constexpr int kMaxPeers = 8;
  static constexpr bool takes(int32_t peers) { return peers == 2 || peers == 3 || peers == 4 || peers == kMaxPeers; }
  /// Runs that a warpgroup receives, at most.
  static constexpr int runs() {
    int most = 0;
    for (int peers = 2; peers <= kMaxPeers; ++peers) {
      int const received = (subtiles + peers - 1) / peers * (peers - 1);
      if (takes(peers) && received > most) most = received;
    }
    return most;
  }
  static constexpr int kBytes = warpgroups * runs() * kRunBytes;
  static_assert(registers % 4 == 0);

  struct Barriers {
    cutlass::arch::ClusterBarrier ready;                        ///< all peers have read the last of their operands
    cutlass::arch::ClusterTransactionBarrier sums[warpgroups];  ///< what others send to a warpgroup has come
  };

  /// By one thread, before the cluster's first synchronisation.
  CUTLASS_DEVICE static void initialise(Barriers& barriers, int32_t peers) {
    barriers.ready.init(uint32_t((peers - 1) * warpgroups));
    for (int i = 0; i < warpgroups; ++i) barriers.sums[i].init(1);
  }

  /// `memory`: kBytes of shared memory that operands were in. `named_barrier` is for this warpgroup alone.
  CUTLASS_DEVICE ClusterFixup(Barriers& barriers, void* memory, int32_t peers, int32_t warpgroup)
      : barriers_(barriers), memory_(static_cast<uint8_t*>(memory)), peers_(peers), warpgroup_(warpgroup) {}

  CUTLASS_DEVICE static int32_t owner(int32_t subtile, int32_t peers) { return subtile % peers; }

  /// Adds up this rank's share of the first `used` subtiles in `sums`, which each thread of the warpgroup passes.
  CUTLASS_DEVICE void exchange(float* sums, int32_t used, uint32_t named_barrier) const {
    uint32_t const thread = threadIdx.x % kThreads;
    int32_t const rank = int32_t(cute::block_rank_in_cluster());
    int32_t const owned = (used - rank + peers_ - 1) / peers_;
    cutlass::arch::NamedBarrier::sync(kThreads, cutlass::arch::ReservedNamedBarriers(named_barrier));
    if (thread == 0) barriers_.sums[warpgroup_].arrive_and_expect_tx(uint32_t(owned > 0 ? owned * (peers_ - 1) * kRunBytes : 0));
    if (int32_t(thread) < peers_ && int32_t(thread) != rank) {
      uint32_t const there = remote(cute::cast_smem_ptr_to_uint(&barriers_.ready), thread);
      asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
    }
    wait(cute::cast_smem_ptr_to_uint(&barriers_.ready));

    uint32_t const barrier = cute::cast_smem_ptr_to_uint(&barriers_.sums[warpgroup_]);
    CUTLASS_PRAGMA_UNROLL
    for (int32_t subtile = 0; subtile < subtiles; ++subtile) {
      int32_t const to = owner(subtile, peers_);
      if (subtile >= used || to == rank) continue;
      uint32_t const there = remote(cute::cast_smem_ptr_to_uint(run(subtile, rank - (rank > to)) + thread * 16), uint32_t(to));
      uint32_t const signal = remote(barrier, uint32_t(to));
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        float const* const x = sums + subtile * registers + 4 * v;
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                         there + v * kThreads * 16),
                     "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(signal)
                     : "memory");
      }
    }

    wait(barrier);
    CUTLASS_PRAGMA_UNROLL
    for (int32_t subtile = 0; subtile < subtiles; ++subtile) {
      if (subtile >= used || owner(subtile, peers_) != rank) continue;
      for (int32_t slot = 0; slot < peers_ - 1; ++slot) {
        float4 const* const here = reinterpret_cast<float4 const*>(run(subtile, slot)) + thread;
        float* const x = sums + subtile * registers;
        CUTLASS_PRAGMA_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          float4 const y = here[v * kThreads];
          x[4 * v] += y.x;
          x[4 * v + 1] += y.y;
          x[4 * v + 2] += y.z;
          x[4 * v + 3] += y.w;
        }
      }
    }
  }

 private:
  Barriers& barriers_;
  uint8_t* memory_;
  int32_t peers_, warpgroup_;

  /// Where the owner of `subtile` keeps what its `slot`-th other peer sends.
  CUTLASS_DEVICE uint8_t* run(int32_t subtile, int32_t slot) const {
    int32_t const index = subtile / peers_ * (peers_ - 1) + slot;
    return memory_ + (warpgroup_ * runs() + index) * kRunBytes;
  }

  /// For the barrier's first phase; what other CTAs of the cluster did before they arrived is seen from here on.
  CUTLASS_DEVICE static void wait(uint32_t barrier) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(barrier)
        : "memory");
  }

  CUTLASS_DEVICE static uint32_t remote(uint32_t address, uint32_t rank) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
  }
};

}  // namespace cutlass_sk
