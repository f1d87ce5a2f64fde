/// What every kernel's C ABI needs, whichever CUTLASS API it is built on.
#pragma once
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdio>
#include <cstring>

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

/// Lets a kernel use more than 48 KiB of shared memory, once a device.
inline cudaError_t allow_shared_memory(void const* kernel, int bytes, int device) {
  constexpr int kDevices = 64;
  static std::atomic<bool> done[kDevices];
  if (device < 0 || device >= kDevices) return cudaErrorInvalidDevice;
  if (done[device].load(std::memory_order_acquire)) return cudaSuccess;
  cudaError_t const error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
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

/// Shim::describe, query and launch as the exported functions of this shared object.
#define CUTLASS_SK_EXPORT_KERNEL(Shim, Name)                                                                                  \
  CUTLASS_SK_EXPORT int32_t cutlass_sk_describe(CutlassSkDescription* out) {                                                  \
    if (out == nullptr || out->struct_bytes != int32_t(sizeof(*out))) return CUTLASS_SK_BAD_ABI;                              \
    *out = CutlassSkDescription{};                                                                                            \
    out->abi_version = CUTLASS_SK_ABI_VERSION;                                                                                \
    out->struct_bytes = int32_t(sizeof(*out));                                                                                \
    std::snprintf(out->name, sizeof(out->name), "%s", Name);                                                                  \
    Shim::describe(out);                                                                                                      \
    return CUTLASS_SK_OK;                                                                                                     \
  }                                                                                                                           \
  CUTLASS_SK_EXPORT int32_t cutlass_sk_query(CutlassSkProblem const* problem, CutlassSkPlan const* plan, CutlassSkQuery* out, \
                                             CutlassSkResult* result) {                                                       \
    if (result == nullptr) return CUTLASS_SK_BAD_ABI;                                                                         \
    *result = CutlassSkResult{};                                                                                              \
    if (problem == nullptr || plan == nullptr || out == nullptr) {                                                            \
      return cutlass_sk::fail(result, CUTLASS_SK_BAD_ABI, "null argument");                                                   \
    }                                                                                                                         \
    if (plan->struct_bytes != int32_t(sizeof(*plan)) || out->struct_bytes != int32_t(sizeof(*out))) {                         \
      return cutlass_sk::fail(result, CUTLASS_SK_BAD_ABI, "struct sizes differ");                                             \
    }                                                                                                                         \
    return Shim::query(*problem, *plan, out, result);                                                                         \
  }                                                                                                                           \
  CUTLASS_SK_EXPORT int32_t cutlass_sk_launch(CutlassSkLaunch const* launch, CutlassSkResult* result) {                       \
    if (result == nullptr) return CUTLASS_SK_BAD_ABI;                                                                         \
    *result = CutlassSkResult{};                                                                                              \
    if (launch == nullptr) return cutlass_sk::fail(result, CUTLASS_SK_BAD_ABI, "null argument");                              \
    if (launch->struct_bytes != int32_t(sizeof(*launch)) || launch->plan.struct_bytes != int32_t(sizeof(launch->plan))) {     \
      return cutlass_sk::fail(result, CUTLASS_SK_BAD_ABI, "struct sizes differ");                                             \
    }                                                                                                                         \
    return Shim::launch(*launch, result);                                                                                     \
  }

}  // namespace cutlass_sk
