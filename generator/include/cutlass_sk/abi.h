/// The C ABI of a compiled kernel: plain C structs, four host functions. `generator/abi.py` mirrors it; both carry the version.
///
/// A shared object exports `cutlass_sk_describe` (what the kernel is), `cutlass_sk_query` (what a plan would launch; host only, no
/// GPU needed), `cutlass_sk_prepare` (all of a launch that stays the same from call to call) and `cutlass_sk_enqueue` (one call).
/// Every function checks what it is given and answers with a status; none of them aborts.
#pragma once
#include <stdint.h>

#define CUTLASS_SK_ABI_VERSION 3
#define CUTLASS_SK_EXPORT extern "C" __attribute__((visibility("default")))

enum CutlassSkStatus : int32_t {
  CUTLASS_SK_OK = 0,
  CUTLASS_SK_BAD_ABI = 1,        ///< struct sizes or version differ from this kernel's
  CUTLASS_SK_BAD_PROBLEM = 2,    ///< sizes or leading dimensions out of range
  CUTLASS_SK_BAD_PLAN = 3,       ///< the plan does not cover this problem with this kernel
  CUTLASS_SK_MISALIGNED = 4,     ///< a pointer or leading dimension breaks the kernel's alignment
  CUTLASS_SK_CUDA_ERROR = 5,     ///< see `cuda_error`
  CUTLASS_SK_CUTLASS_ERROR = 6,  ///< see `cutlass_status`
  CUTLASS_SK_OTHER_DEVICE = 7,   ///< the current device is not the one that the launch was prepared for
  CUTLASS_SK_CAPTURING = 8,      ///< the stream is being captured, and the call was to be eager
};

struct CutlassSkDescription {
  int32_t abi_version;
  int32_t struct_bytes;  ///< set by the caller, checked by the kernel
  int32_t tile_m, tile_n, tile_k;
  int32_t narrowest;  ///< the least tile_n that a plan may ask for; tile_n is the largest, and what has one width has it twice
  int32_t cluster_m, cluster_n;
  int32_t threads, stages, shared_memory_bytes;
  int32_t alignment_a, alignment_b, alignment_c;  ///< elements
  int32_t accumulator_fragments;                  ///< reduction CTAs a tile gets in a separate reduction (2.x)
  int32_t cluster_fixup;                          ///< 1: plans may split tiles in clusters
  int64_t partial_bytes;                          ///< partial sums of one CTA
  int64_t prepared_bytes, prepared_alignment;     ///< of the memory that `cutlass_sk_prepare` fills
  char name[160];
};

/// c[m, n] = a[m, k] @ b[k, n]; leading dimensions in elements, row-major c; each kernel has its layouts of a and b.
struct CutlassSkProblem {
  int64_t m, n, k;
  int64_t lda, ldb, ldc;
};

/// See cutlass_sk/plan.py for the meaning of each field.
struct CutlassSkPlan {
  int32_t struct_bytes;
  int32_t grid;  ///< CTAs
  int32_t tiles_m, tiles_n, iters_per_tile;
  int32_t dp_tiles, sk_tiles, sk_units, splits;
  int32_t reduction_ctas;
  int32_t nondeterministic;
  int32_t raster_along_n;   ///< 0: consecutive tiles step in m, 1: in n
  int32_t raster_swizzle;   ///< width, in work tiles, of the strips in which tiles are visited
  int32_t promotion_iters;  ///< iterations added up in the tensor core before float32 additions take over; 0: all
  int32_t in_clusters;      ///< 1: the parts of a split tile are one cluster and add up through its shared memory
  int32_t tile_n;           ///< columns of a tile in this launch: one of the kernel's widths
};

struct CutlassSkQuery {
  int32_t struct_bytes;
  int32_t grid, sk_tiles, sk_units;
  int64_t partials_bytes, barrier_bytes;
};

/// What may change from call to call.
struct CutlassSkAddresses {
  void const* a;
  void const* b;
  void* c;
  double alpha, beta;
  void* partials;        ///< at least partials_bytes, 128-byte aligned, contents of no matter
  void* barriers;        ///< at least barrier_bytes, all zero before the first launch that uses it; every launch leaves it zero
  void* stream;          ///< cudaStream_t
  int32_t programmatic;  ///< 1: may start while the kernel before it on the stream ends (programmatic dependent launch)
  int32_t eager;         ///< 1: partials and barriers are no graph's; refuse to be captured with them
};

/// One call in full. Later calls of the same problem, plan and leading dimensions need the addresses alone.
struct CutlassSkLaunch {
  int32_t struct_bytes;
  int32_t device;
  CutlassSkProblem problem;
  CutlassSkPlan plan;
  CutlassSkAddresses addresses;
};

struct CutlassSkResult {
  int32_t status;  ///< CutlassSkStatus
  int32_t cutlass_status;
  int32_t cuda_error;
  char message[256];
};

typedef int32_t (*CutlassSkDescribeFunction)(CutlassSkDescription*);
typedef int32_t (*CutlassSkQueryFunction)(CutlassSkProblem const*, CutlassSkPlan const*, CutlassSkQuery*, CutlassSkResult*);
/// Checks everything and fills `prepared` (`prepared_bytes` of the caller's memory, which may be copied, shared by threads, and
/// dropped at any time). Makes `device` the current one.
typedef int32_t (*CutlassSkPrepareFunction)(CutlassSkLaunch const*, void* prepared, int64_t bytes, CutlassSkResult*);
/// Checks the addresses and launches. The device that was prepared for must be the current one.
typedef int32_t (*CutlassSkEnqueueFunction)(void const* prepared, CutlassSkAddresses const*, CutlassSkResult*);

/// `lines` lines of `line_bytes` contiguous bytes, `from_leading` and `to_leading` bytes apart. `from` and `from_leading` are
/// multiples of 2, `to` and `to_leading` of 16. What is left of the last 16 bytes of a line of `to` becomes zero.
struct CutlassSkPackMatrix {
  void const* from;
  void* to;
  int64_t lines, line_bytes, from_leading, to_leading;
};

/// A matrix of no lines is skipped.
struct CutlassSkPack {
  int32_t struct_bytes;
  int32_t programmatic;  ///< as in CutlassSkAddresses
  CutlassSkPackMatrix matrices[2];
  void* stream;  ///< cudaStream_t
};

/// Enqueues the copies on the current device.
typedef int32_t (*CutlassSkPackFunction)(CutlassSkPack const*, CutlassSkResult*);
