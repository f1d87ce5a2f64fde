/// What every kernel's C ABI needs, whichever CUTLASS API it is built on.
#pragma once
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <new>
#include <type_traits>

#include "cutlass/cutlass.h"
#include "cutlass_sk/abi.h"

namespace cutlass_sk {

/// Fills `result` and returns the status, so that a check reads `return fail(...)`.
template <class... Values>
int32_t fail(CutlassSkResult* result, int32_t status, char const* format, Values... values) {
  result->status = status;
  std::snprintf(result->message, sizeof(result->message), format, values...);
  return status;
}

inline int32_t fail_cuda(CutlassSkResult* result, cudaError_t error, char const* doing) {
  (void)cudaGetLastError();  // a failed call must not be found pending by whoever launches next
  result->cuda_error = int32_t(error);
  return fail(result, CUTLASS_SK_CUDA_ERROR, "%s: %s (%s)", doing, cudaGetErrorName(error), cudaGetErrorString(error));
}

inline int32_t fail_cutlass(CutlassSkResult* result, cutlass::Status status, char const* doing) {
  result->cutlass_status = int32_t(status);
  return fail(result, CUTLASS_SK_CUTLASS_ERROR, "%s: %s", doing, cutlass::cutlassGetStatusString(status));
}

/// Whether `pointer` is one, and a multiple of `bytes`.
inline bool aligned(void const* pointer, int64_t bytes) {
  return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

/// Lets a shim's kernel use more than 48 KiB of shared memory, once a device.
template <class Shim>
cudaError_t allow_shared_memory(int device) {
  constexpr int kDevices = 64;
  static std::atomic<bool> done[kDevices];
  if (device < 0 || device >= kDevices) return cudaErrorInvalidDevice;
  if (done[device].load(std::memory_order_acquire)) return cudaSuccess;
  cudaError_t const error =
      cudaFuncSetAttribute(Shim::function(), cudaFuncAttributeMaxDynamicSharedMemorySize, Shim::kSharedMemoryBytes);
  if (error == cudaSuccess) done[device].store(true, std::memory_order_release);
  return error;
}

/// Sizes that both APIs can express: 32-bit extents, positive leading dimensions.
inline int32_t check_problem(CutlassSkProblem const& p, CutlassSkResult* result) {
  constexpr int64_t limit = INT32_MAX;
  if (p.m < 1 || p.n < 1 || p.k < 1 || p.m > limit || p.n > limit || p.k > limit) {
    return fail(result, CUTLASS_SK_BAD_PROBLEM, "sizes m=%lld n=%lld k=%lld must lie in [1, 2^31)", (long long)p.m, (long long)p.n,
                (long long)p.k);
  }
  return CUTLASS_SK_OK;
}

/// Layouts and alignment, in elements, of the operands that a kernel takes.
struct OperandRules {
  bool a_row_major, b_row_major, c_row_major;
  int alignment_a, alignment_b, alignment_c;
  int element_bytes, element_bytes_c;
};

inline int32_t check_leading_dimensions(CutlassSkProblem const& p, OperandRules const& rules, CutlassSkResult* result) {
  if (p.lda < (rules.a_row_major ? p.k : p.m) || p.ldb < (rules.b_row_major ? p.n : p.k) ||
      p.ldc < (rules.c_row_major ? p.n : p.m)) {
    return fail(result, CUTLASS_SK_BAD_PROBLEM, "leading dimensions lda=%lld ldb=%lld ldc=%lld are too small", (long long)p.lda,
                (long long)p.ldb, (long long)p.ldc);
  }
  if (p.lda % rules.alignment_a != 0 || p.ldb % rules.alignment_b != 0 || p.ldc % rules.alignment_c != 0) {
    return fail(result, CUTLASS_SK_MISALIGNED,
                "leading dimensions lda=%lld ldb=%lld ldc=%lld must be multiples of %d, %d and %d elements", (long long)p.lda,
                (long long)p.ldb, (long long)p.ldc, rules.alignment_a, rules.alignment_b, rules.alignment_c);
  }
  return CUTLASS_SK_OK;
}

inline int32_t check_addresses(CutlassSkAddresses const& x, OperandRules const& rules, bool workspace, CutlassSkResult* result) {
  int const a = rules.alignment_a * rules.element_bytes, b = rules.alignment_b * rules.element_bytes;
  int const c = rules.alignment_c * rules.element_bytes_c;
  if (!aligned(x.a, a) || !aligned(x.b, b) || !aligned(x.c, c)) {
    return fail(result, CUTLASS_SK_MISALIGNED, "addresses a=%p b=%p c=%p must be multiples of %d, %d and %d bytes", x.a, x.b, x.c,
                a, b, c);
  }
  if (workspace && (!aligned(x.partials, 128) || x.barriers == nullptr)) {
    return fail(result, CUTLASS_SK_BAD_PLAN, "the plan needs a workspace: partials (128-byte aligned) and barriers");
  }
  return CUTLASS_SK_OK;
}

/// A launch but for its addresses.
template <class Shim>
struct Prepared {
  void const* function;  ///< tells whose it is
  int32_t device;
  bool workspace;  ///< whether the plan needs partials and barriers
  dim3 grid, cluster;
  typename Shim::Params params;
};

template <class Shim>
int32_t describe(CutlassSkDescription* out, char const* name) {
  if (out == nullptr || out->struct_bytes != int32_t(sizeof(*out))) return CUTLASS_SK_BAD_ABI;
  *out = CutlassSkDescription{};
  out->abi_version = CUTLASS_SK_ABI_VERSION;
  out->struct_bytes = int32_t(sizeof(*out));
  std::snprintf(out->name, sizeof(out->name), "%s", name);
  Shim::describe(out);
  out->shared_memory_bytes = Shim::kSharedMemoryBytes;
  out->threads = Shim::kThreads;
  out->alignment_a = Shim::kRules.alignment_a;
  out->alignment_b = Shim::kRules.alignment_b;
  out->alignment_c = Shim::kRules.alignment_c;
  out->prepared_bytes = int64_t(sizeof(Prepared<Shim>));
  out->prepared_alignment = int64_t(alignof(Prepared<Shim>));
  return CUTLASS_SK_OK;
}

template <class Shim>
int32_t query(CutlassSkProblem const* problem, CutlassSkPlan const* plan, CutlassSkQuery* out, CutlassSkResult* result) {
  if (result == nullptr) return CUTLASS_SK_BAD_ABI;
  *result = CutlassSkResult{};
  if (problem == nullptr || plan == nullptr || out == nullptr) return fail(result, CUTLASS_SK_BAD_ABI, "null argument");
  if (plan->struct_bytes != int32_t(sizeof(*plan)) || out->struct_bytes != int32_t(sizeof(*out))) {
    return fail(result, CUTLASS_SK_BAD_ABI, "struct sizes differ");
  }
  if (int32_t status = check_problem(*problem, result)) return status;
  if (int32_t status = Shim::check_plan(*problem, *plan, result)) return status;
  Shim::query(*problem, *plan, out);
  return CUTLASS_SK_OK;
}

template <class Shim>
int32_t prepare(CutlassSkLaunch const* launch, void* memory, int64_t bytes, CutlassSkResult* result) {
  using Known = Prepared<Shim>;
  static_assert(std::is_trivially_destructible_v<Known>, "the caller drops the memory, and nothing else");
  if (result == nullptr) return CUTLASS_SK_BAD_ABI;
  *result = CutlassSkResult{};
  if (launch == nullptr) return fail(result, CUTLASS_SK_BAD_ABI, "null argument");
  if (launch->struct_bytes != int32_t(sizeof(*launch)) || launch->plan.struct_bytes != int32_t(sizeof(launch->plan))) {
    return fail(result, CUTLASS_SK_BAD_ABI, "struct sizes differ");
  }
  if (bytes < int64_t(sizeof(Known)) || !aligned(memory, alignof(Known))) {
    return fail(result, CUTLASS_SK_BAD_ABI, "a prepared launch takes %d bytes, %d-byte aligned", int(sizeof(Known)),
                int(alignof(Known)));
  }
  bool const workspace = launch->plan.sk_units > 0 && launch->plan.in_clusters == 0;
  if (int32_t status = check_problem(launch->problem, result)) return status;
  if (int32_t status = Shim::check_plan(launch->problem, launch->plan, result)) return status;
  if (int32_t status = check_leading_dimensions(launch->problem, Shim::kRules, result)) return status;
  if (int32_t status = check_addresses(launch->addresses, Shim::kRules, workspace, result)) return status;
  if (int32_t status = Shim::check_extents(launch->problem, result)) return status;

  int current = -1;
  if (cudaGetDevice(&current) != cudaSuccess || current != launch->device) {
    if (cudaError_t error = cudaSetDevice(launch->device)) return fail_cuda(result, error, "cudaSetDevice");
  }
  if constexpr (Shim::kSharedMemoryBytes > (48 << 10)) {
    if (cudaError_t error = allow_shared_memory<Shim>(launch->device)) {
      return fail_cuda(result, error, "cudaFuncSetAttribute(MaxDynamicSharedMemorySize)");
    }
  }
  Known* const known =
      new (memory) Known{Shim::function(), launch->device, workspace, Shim::grid(*launch), Shim::cluster(*launch), {}};
  return Shim::make_params(*launch, known->params, result);
}

/// Nothing is allocated, looked up or kept: a call costs little more than cudaLaunchKernelExC (2 us).
template <class Shim>
int32_t enqueue(void const* memory, CutlassSkAddresses const* addresses, CutlassSkResult* result) {
  if (result == nullptr) return CUTLASS_SK_BAD_ABI;
  result->status = result->cutlass_status = result->cuda_error = 0;
  result->message[0] = 0;
  if (memory == nullptr || addresses == nullptr) return fail(result, CUTLASS_SK_BAD_ABI, "null argument");
  Prepared<Shim> const& known = *static_cast<Prepared<Shim> const*>(memory);
  if (known.function != Shim::function()) return fail(result, CUTLASS_SK_BAD_ABI, "this kernel has not prepared the launch");
  if (int32_t status = check_addresses(*addresses, Shim::kRules, known.workspace, result)) return status;
  int current = -1;
  if (cudaGetDevice(&current) != cudaSuccess || current != known.device) {
    return fail(result, CUTLASS_SK_OTHER_DEVICE, "device %d is current, the launch is for device %d", current, known.device);
  }
  cudaStream_t const stream = static_cast<cudaStream_t>(addresses->stream);
  if (addresses->eager != 0 && known.workspace) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (cudaError_t error = cudaStreamIsCapturing(stream, &capture)) return fail_cuda(result, error, "cudaStreamIsCapturing");
    if (capture != cudaStreamCaptureStatusNone) return fail(result, CUTLASS_SK_CAPTURING, "the stream is being captured");
  }
  typename Shim::Params params = known.params;  // a copy: threads share what is prepared
  if (int32_t status = Shim::set_addresses(params, *addresses, result)) return status;

  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  if constexpr (Shim::kClustered) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {known.cluster.x, known.cluster.y, known.cluster.z};
  }
  if (addresses->programmatic != 0) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = known.grid;
  config.blockDim = dim3(Shim::kThreads);
  config.dynamicSmemBytes = Shim::kSharedMemoryBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  void* parameters[] = {&params};
  if (cudaError_t error = cudaLaunchKernelExC(&config, known.function, parameters)) {
    return fail_cuda(result, error, "cudaLaunchKernelExC");
  }
  return CUTLASS_SK_OK;
}

/// What the names of the exported functions end in, where a library holds several kernels.
#ifndef CUTLASS_SK_SUFFIX
#define CUTLASS_SK_SUFFIX
#endif
#define CUTLASS_SK_JOINED(name, suffix) name##suffix
#define CUTLASS_SK_NAMED(name, suffix) CUTLASS_SK_JOINED(name, suffix)

/// A shim's kernel as exported functions. A shim has Params, kRules, kThreads, kSharedMemoryBytes, kClustered, function, describe,
/// query, check_plan, check_extents, grid, cluster, make_params and set_addresses.
#define CUTLASS_SK_EXPORT_KERNEL(Shim, Name)                                                                                       \
  CUTLASS_SK_EXPORT int32_t CUTLASS_SK_NAMED(cutlass_sk_describe, CUTLASS_SK_SUFFIX)(CutlassSkDescription * out) {                 \
    return cutlass_sk::describe<Shim>(out, Name);                                                                                  \
  }                                                                                                                                \
  CUTLASS_SK_EXPORT int32_t CUTLASS_SK_NAMED(cutlass_sk_query, CUTLASS_SK_SUFFIX)(                                                 \
      CutlassSkProblem const* problem, CutlassSkPlan const* plan, CutlassSkQuery* out, CutlassSkResult* result) {                  \
    return cutlass_sk::query<Shim>(problem, plan, out, result);                                                                    \
  }                                                                                                                                \
  CUTLASS_SK_EXPORT int32_t CUTLASS_SK_NAMED(cutlass_sk_prepare, CUTLASS_SK_SUFFIX)(CutlassSkLaunch const* launch, void* prepared, \
                                                                                    int64_t bytes, CutlassSkResult* result) {      \
    return cutlass_sk::prepare<Shim>(launch, prepared, bytes, result);                                                             \
  }                                                                                                                                \
  CUTLASS_SK_EXPORT int32_t CUTLASS_SK_NAMED(cutlass_sk_enqueue, CUTLASS_SK_SUFFIX)(                                               \
      void const* prepared, CutlassSkAddresses const* addresses, CutlassSkResult* result) {                                        \
    return cutlass_sk::enqueue<Shim>(prepared, addresses, result);                                                                 \
  }

}  // namespace cutlass_sk
