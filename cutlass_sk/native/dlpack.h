/// What we use of DLPack 1.3 (github.com/dmlc/dlpack, include/dlpack/dlpack.h): views of tensors, and the table of functions behind
/// `__dlpack_c_exchange_api__`. The layout is the specification's for every version 1.x; `version.major` says so.
#pragma once
#include <stdint.h>

struct DLPackVersion {
  uint32_t major, minor;
};

struct DLDevice {
  int32_t device_type;  ///< 1: CPU, 2: CUDA
  int32_t device_id;
};

struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};

/// Shape and strides (in elements) belong to the tensor.
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

struct DLPackExchangeAPIHeader {
  DLPackVersion version;
  DLPackExchangeAPIHeader* prev_api;
};

/// Functions answer 0, or -1 with a Python error set.
struct DLPackExchangeAPI {
  DLPackExchangeAPIHeader header;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object_no_sync;
  void* managed_tensor_to_py_object_no_sync;
  int (*dltensor_from_py_object_no_sync)(void* object, DLTensor* out);  ///< may be null
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** out);
};
