/// The table of calls that were made before, and the workspaces of streams. No Python but for references that are kept.
#pragma once
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "cutlass_sk/abi.h"
#include "dlpack.h"

namespace cutlass_sk {

/// Owns one reference. Made, copied and dropped with the GIL held.
class Reference {
 public:
  Reference() = default;
  static Reference taken(PyObject* object) { return Reference(object); }
  static Reference shared(PyObject* object) {
    Py_XINCREF(object);
    return Reference(object);
  }
  Reference(Reference const& other) : object_(other.object_) { Py_XINCREF(object_); }
  Reference(Reference&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Reference& operator=(Reference other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Reference() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  explicit Reference(PyObject* object) : object_(object) {}
  PyObject* object_ = nullptr;
};

/// A matrix as DLPack shows it.
struct Matrix {
  std::array<int64_t, 2> size{}, stride{};  ///< in elements
  uintptr_t address = 0;
  uint32_t dtype = 0;  ///< code, bits, lanes
  DLDevice device{};

  int64_t element_bytes() const { return int64_t((dtype >> 8 & 0xff) / 8); }
  /// How far the elements reach from the address.
  int64_t reach_bytes() const {
    if (size[0] == 0 || size[1] == 0) return 0;
    return ((size[0] - 1) * stride[0] + (size[1] - 1) * stride[1] + 1) * element_bytes();
  }
};

/// All of the operands that decides a call, apart from where they lie.
struct Signature {
  std::array<uint64_t, 15> words;

  Signature(Matrix const& a, Matrix const& b, Matrix const& c) {
    size_t at = 0;
    for (Matrix const* x : {&a, &b, &c}) {
      for (int64_t word : {x->size[0], x->size[1], x->stride[0], x->stride[1]}) words[at++] = uint64_t(word);
    }
    words[at++] = uint64_t(a.dtype) << 32 | b.dtype;
    words[at++] = uint64_t(c.dtype) << 32 | (a.address & 15) << 8 | (b.address & 15) << 4 | (c.address & 15);
    words[at++] = uint64_t(uint32_t(a.device.device_type)) << 32 | uint32_t(a.device.device_id);
  }
  bool operator==(Signature const& other) const { return words == other.words; }

  struct Hash {
    size_t operator()(Signature const& signature) const {
      uint64_t hash = 0;
      for (uint64_t word : signature.words) {
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
      }
      return size_t(hash);
    }
  };
};

/// What is packed before a launch: `given` lacks addresses and the stream, and has no lines where an operand is used as it lies.
struct Packing {
  CutlassSkPackFunction function = nullptr;
  CutlassSkPack given{};

  /// How much memory an operand's copy takes, up to a 256-byte boundary.
  int64_t bytes(int operand) const {
    CutlassSkPackMatrix const& matrix = given.matrices[operand];
    return (matrix.lines * matrix.to_leading + 255) / 256 * 256;
  }
};

/// A prepared launch. `owner` keeps its memory.
struct Call {
  CutlassSkEnqueueFunction enqueue = nullptr;
  void const* prepared = nullptr;
  Reference owner;
  int64_t partials_bytes = 0, barrier_bytes = 0;
  bool programmatic = false;
  Packing packing;
};

using CallTable = std::unordered_map<Signature, Call, Signature::Hash>;

/// Partial sums and flags of one stream; see cutlass_sk/workspace.py, which makes them. `owner` keeps their memory.
struct Workspace {
  void* partials = nullptr;
  void* barriers = nullptr;
  int64_t partials_bytes = 0, barrier_bytes = 0;
  Reference owner;
};

struct StreamKey {
  int64_t device;
  uintptr_t stream;
  bool operator==(StreamKey const& other) const { return device == other.device && stream == other.stream; }
  struct Hash {
    size_t operator()(StreamKey const& key) const { return (key.stream >> 4 ^ size_t(key.device)) * 0x9e3779b97f4a7c15u; }
  };
};

using WorkspaceTable = std::unordered_map<StreamKey, Workspace, StreamKey::Hash>;

}  // namespace cutlass_sk
