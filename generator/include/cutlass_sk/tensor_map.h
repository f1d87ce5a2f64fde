/// TMA descriptors of matrices. The driver's functions are found at run time: nothing is linked to libcuda.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

#include "cutlass/bfloat16.h"
#include "cutlass/half.h"

namespace cutlass_sk {

template <class Element>
constexpr CUtensorMapDataType kMapType = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
template <>
constexpr CUtensorMapDataType kMapType<cutlass::bfloat16_t> = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;

/// The driver's function called `name`, as it was in CUDA 12.0; nullptr if the driver has none.
template <class Function>
Function driver_function(char const* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult answer = cudaDriverEntryPointSymbolNotFound;
  cudaError_t const error = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &answer);
  return reinterpret_cast<Function>(error == cudaSuccess && answer == cudaDriverEntryPointSuccess ? found : nullptr);
}

/// A matrix of `outer` lines of `inner` contiguous elements, `leading` elements apart, loaded in boxes of box_outer lines of
/// box_inner elements, swizzled over lines of `swizzle` (64 or 128) bytes. All zero if the driver refuses it.
template <class Element>
CUtensorMap encode_map(Element const* pointer, int64_t inner, int64_t outer, int64_t leading, int box_inner, int box_outer,
                       int swizzle) {
  using Encode =
      CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, cuuint64_t const*, cuuint64_t const*, cuuint32_t const*,
                   cuuint32_t const*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  static Encode const encode = driver_function<Encode>("cuTensorMapEncodeTiled");
  cuuint64_t const sizes[2] = {cuuint64_t(inner), cuuint64_t(outer)};
  cuuint64_t const strides[1] = {cuuint64_t(leading) * sizeof(Element)};
  cuuint32_t const box[2] = {cuuint32_t(box_inner), cuuint32_t(box_outer)}, steps[2] = {1, 1};
  CUtensorMap map{};
  if (encode == nullptr) return map;
  CUresult const error =
      encode(&map, kMapType<Element>, 2, const_cast<Element*>(pointer), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             swizzle == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return error == CUDA_SUCCESS ? map : CUtensorMap{};
}

}  // namespace cutlass_sk
