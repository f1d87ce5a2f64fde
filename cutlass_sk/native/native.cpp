/// cutlass_sk._native: what is left of Gemm.run once a call was made before, in a microsecond beside the launch.
///
/// It sees tensors through torch's DLPack functions and kernels through their C ABI, so that it is linked to neither and one binary
/// serves every CPython from 3.10 and every torch that has the functions. It knows no errors of its own: whatever it does not take,
/// it leaves to the slow path by answering None, and that says what is wrong. cutlass_sk/call.py has the same in Python.
#include <algorithm>
#include <cstdlib>

#include "calls.h"
#include "decide.h"

namespace cutlass_sk {
namespace {

constexpr uintptr_t kPerThreadStream = 2;  // cudaStreamPerThread: one handle for as many streams as there are threads
constexpr char kProgrammaticSwitch[] = "CUTLASS_SK_PDL";

/// What `bind` was given, for as long as the process lives.
struct Torch {
  DLPackExchangeAPI const* dlpack = nullptr;
  PyObject* tensor_type = nullptr;
  PyObject* is_neg = nullptr;
  PyObject* is_inference = nullptr;
  PyObject* new_empty = nullptr;
  PyObject* increment_version = nullptr;
  PyObject* current_device = nullptr;  ///< None where torch knows no GPU
  PyObject* is_capturing = nullptr;    ///< likewise
  PyObject* requires_grad = nullptr;   ///< the attribute's name
  PyObject* inference_mode = nullptr;  ///< whether it is on
} torch;

WorkspaceTable& workspaces() {
  static WorkspaceTable* const table = new WorkspaceTable;  // never destroyed: references outlive no interpreter
  return *table;
}

/// None, and no error: the slow path takes over.
PyObject* not_taken() {
  PyErr_Clear();
  Py_RETURN_NONE;
}

/// A matrix of exact type torch.Tensor with memory behind it. Sparse, nested, quantised and meta tensors and those that torch.func
/// wraps have no DLPack view, or no address.
bool view(PyObject* tensor, Matrix& out) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(tensor)) != torch.tensor_type) return false;
  DLTensor seen;
  if (torch.dlpack->dltensor_from_py_object_no_sync(tensor, &seen) != 0 || seen.ndim != 2 || seen.data == nullptr) return false;
  out.size = {seen.shape[0], seen.shape[1]};
  out.stride = {seen.strides[0], seen.strides[1]};
  out.address = reinterpret_cast<uintptr_t>(seen.data) + seen.byte_offset;
  out.dtype = uint32_t(seen.dtype.code) | uint32_t(seen.dtype.bits) << 8 | uint32_t(seen.dtype.lanes) << 16;
  out.device = seen.device;
  return true;
}

/// Whether nothing is pending on the tensor: no gradient to record, no negation that its memory lacks. DLPack shows neither.
bool settled(PyObject* tensor) {
  Reference const grad = Reference::taken(PyObject_GetAttr(tensor, torch.requires_grad));
  if (grad.get() != Py_False) return false;
  return Reference::taken(PyObject_CallFunctionObjArgs(torch.is_neg, tensor, nullptr)).get() == Py_False;
}

/// Whether a tensor may be written to here: one that was made in inference mode may not outside of it.
bool writable(PyObject* tensor) {
  if (Reference::taken(PyObject_CallFunctionObjArgs(torch.is_inference, tensor, nullptr)).get() == Py_False) return true;
  return Reference::taken(PyObject_CallNoArgs(torch.inference_mode)).get() == Py_True;
}

bool same_device(Matrix const& x, Matrix const& y) {
  return x.device.device_type == y.device.device_type && x.device.device_id == y.device.device_id;
}

/// Whether ranges of addresses meet; side-by-side windows are told apart by the slow path alone.
bool overlap(Matrix const& x, Matrix const& y) {
  return x.address < y.address + uintptr_t(y.reach_bytes()) && y.address < x.address + uintptr_t(x.reach_bytes());
}

/// alpha or beta: a plain float or int.
bool number(PyObject* object, double& out) {
  if (Py_TYPE(object) == &PyFloat_Type) {
    out = PyFloat_AsDouble(object);
    return true;
  }
  if (Py_TYPE(object) != &PyLong_Type) return false;
  out = PyLong_AsDouble(object);
  return out != -1.0 || PyErr_Occurred() == nullptr;
}

/// Reads the switch as cutlass_sk/env.py does, at each call; false for what only env.py knows how to read or to refuse. os.environ
/// keeps the C environment in step, under the GIL, which is held here.
bool programmatic_launch(int32_t& out) {
  char const* const text = std::getenv(kProgrammaticSwitch);
  out = 1;
  if (text == nullptr || text[0] == 0) return true;
  out = text[0] - '0';
  return (out == 0 || out == 1) && text[1] == 0;
}

/// a.new_empty(m, n), with keywords.
Reference allocate(PyObject* a, int64_t m, int64_t n, PyObject* keywords) {
  Reference const rows = Reference::taken(PyLong_FromLongLong(m)), columns = Reference::taken(PyLong_FromLongLong(n));
  if (!rows || !columns) return {};
  Reference const arguments = Reference::taken(PyTuple_Pack(3, a, rows.get(), columns.get()));
  return arguments ? Reference::taken(PyObject_Call(torch.new_empty, arguments.get(), keywords)) : Reference();
}

/// Whether a pack may be launched: the device is the current one, and what follows, which for shared tiles refuses to be captured,
/// will be launched, too.
bool may_pack(Call const& call, int32_t device) {
  if (torch.current_device == Py_None) return true;
  Reference const current = Reference::taken(PyObject_CallNoArgs(torch.current_device));
  if (!current || PyLong_AsLong(current.get()) != device) return false;
  if (call.partials_bytes == 0) return true;
  return Reference::taken(PyObject_CallNoArgs(torch.is_capturing)).get() == Py_False;
}

/// Fills in where operands are packed from and to, and makes the launch read the copies; false if there is no memory. `owner` holds
/// it until the launch is enqueued: what torch gives it to later comes later on the stream.
bool add_packing(Packing const& packing, PyObject* like, int64_t element_bytes, CutlassSkAddresses& addresses, CutlassSkPack& pack,
                 Reference& owner) {
  Matrix memory;
  owner = allocate(like, 1, (packing.bytes(0) + packing.bytes(1)) / element_bytes, nullptr);
  if (!owner || !view(owner.get(), memory)) return false;
  pack = packing.given;
  pack.stream = addresses.stream;
  pack.programmatic = addresses.programmatic;
  char* to = reinterpret_cast<char*>(memory.address);
  void const** const operands[] = {&addresses.a, &addresses.b};
  for (int i = 0; i < 2; ++i) {
    if (pack.matrices[i].lines == 0) continue;
    pack.matrices[i].from = *operands[i];
    pack.matrices[i].to = to;
    *operands[i] = to;
    to += packing.bytes(i);
  }
  return true;
}

/// Fills in what the stream keeps for calls that share tiles; false if it has too little yet, or is not one stream. `owner` holds
/// it.
bool add_workspace(Call const& call, int64_t device, CutlassSkAddresses& addresses, Reference& owner) {
  uintptr_t const stream = reinterpret_cast<uintptr_t>(addresses.stream);
  if (stream == kPerThreadStream) return false;
  auto const found = workspaces().find({device, stream});
  if (found == workspaces().end()) return false;
  Workspace const& workspace = found->second;
  if (workspace.partials_bytes < call.partials_bytes || workspace.barrier_bytes < call.barrier_bytes) return false;
  addresses.partials = workspace.partials;
  addresses.barriers = workspace.barriers;
  addresses.eager = 1;
  owner = workspace.owner;
  return true;
}

/// Without the GIL: the launch waits while its queue is full, perhaps for a host function that itself waits for the GIL. Giving it
/// up costs about 30 ns if no other thread wants it; torch does so in every operation.
int32_t launch(Call const& call, CutlassSkAddresses const& addresses, CutlassSkPack const& pack) {
  CutlassSkResult result;
  int32_t status = CUTLASS_SK_OK;
  Py_BEGIN_ALLOW_THREADS;
  if (call.packing.function != nullptr) status = call.packing.function(&pack, &result);
  if (status == CUTLASS_SK_OK) status = call.enqueue(call.prepared, &addresses, &result);
  Py_END_ALLOW_THREADS;
  return status;
}

/// The calls of one Gemm.
struct Calls {
  PyObject_HEAD CallTable* table;
  PyObject* keywords;  ///< of new_empty: the output's dtype, if it is not that of a
  Py_ssize_t capacity;
  uint32_t out_dtype;  ///< as DLPack has it; 0 until a call is known
};

Calls* of(PyObject* self) { return reinterpret_cast<Calls*>(self); }

PyObject* repeat(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 5) {
    PyErr_SetString(PyExc_TypeError, "repeat takes a, b, c, alpha and beta");
    return nullptr;
  }
  PyObject* const a = arguments[0];
  PyObject* const b = arguments[1];
  bool const allocates = arguments[2] == Py_None;
  CutlassSkAddresses addresses{};
  if (!number(arguments[3], addresses.alpha) || !number(arguments[4], addresses.beta)) return not_taken();
  if (addresses.alpha == 0.0 || (allocates && addresses.beta != 0.0)) return not_taken();

  Matrix at_a, at_b, at_c;
  if (!view(a, at_a) || !view(b, at_b)) return not_taken();
  // A factor that rounds to 0 in the type of sums takes nothing, as 0 does.
  if (at_a.element_bytes() < 8 && float(addresses.alpha) == 0.0f) return not_taken();
  if (allocates) {
    at_c.size = {at_a.size[0], at_b.size[1]};
    at_c.stride = {at_b.size[1], 1};
    at_c.dtype = of(self)->out_dtype;
    at_c.device = at_a.device;
  } else if (!view(arguments[2], at_c) || overlap(at_c, at_a) || overlap(at_c, at_b)) {
    return not_taken();
  }
  if (!same_device(at_a, at_b) || !same_device(at_a, at_c)) return not_taken();
  Signature const signature(at_a, at_b, at_c);
  auto const found = of(self)->table->find(signature);
  if (found == of(self)->table->end()) return not_taken();
  Call const call = found->second;  // a copy: other threads may clear the table while torch allocates or the launch waits
  if (!settled(a) || !settled(b) || (!allocates && !(settled(arguments[2]) && writable(arguments[2])))) return not_taken();

  Reference c = Reference::shared(arguments[2]);
  if (allocates) {
    c = allocate(a, at_c.size[0], at_c.size[1], of(self)->keywords);
    if (!c || !view(c.get(), at_c) || !same_device(at_a, at_c) || !(Signature(at_a, at_b, at_c) == signature)) return not_taken();
  }
  DLDevice const device = at_a.device;
  if (torch.dlpack->current_work_stream(device.device_type, device.device_id, &addresses.stream) != 0) return not_taken();
  if (!programmatic_launch(addresses.programmatic)) return not_taken();
  addresses.programmatic &= int32_t(call.programmatic);
  addresses.a = reinterpret_cast<void const*>(at_a.address);
  addresses.b = reinterpret_cast<void const*>(at_b.address);
  addresses.c = reinterpret_cast<void*>(at_c.address);
  Reference workspace, copies;
  if (call.partials_bytes > 0 && !add_workspace(call, device.device_id, addresses, workspace)) return not_taken();
  CutlassSkPack pack{};
  if (call.packing.function != nullptr) {
    if (!may_pack(call, device.device_id)) return not_taken();
    if (!add_packing(call.packing, a, at_a.element_bytes(), addresses, pack, copies)) return not_taken();
  }
  if (launch(call, addresses, pack) != CUTLASS_SK_OK) return not_taken();

  if (!allocates) {  // the kernel wrote behind torch's back: let autograd see it
    Reference const written = Reference::taken(PyTuple_Pack(1, c.get()));
    if (!written) return nullptr;
    if (!Reference::taken(PyObject_CallFunctionObjArgs(torch.increment_version, written.get(), nullptr))) return nullptr;
  }
  return c.release();
}

PyObject* add(PyObject* self, PyObject* arguments) {
  PyObject *a, *b, *c, *owner;
  unsigned long long enqueue, prepared, pack = 0;
  long long partials_bytes, barrier_bytes;
  int programmatic;
  char const* given = nullptr;
  Py_ssize_t given_bytes = 0;
  if (!PyArg_ParseTuple(arguments, "OOOKKOLLp|Ky#:add", &a, &b, &c, &enqueue, &prepared, &owner, &partials_bytes, &barrier_bytes,
                        &programmatic, &pack, &given, &given_bytes)) {
    return nullptr;
  }
  if (pack != 0 && given_bytes != Py_ssize_t(sizeof(CutlassSkPack))) {
    PyErr_Format(PyExc_ValueError, "what is packed takes %zu bytes, not %zd", sizeof(CutlassSkPack), given_bytes);
    return nullptr;
  }
  Matrix at_a, at_b, at_c;
  if (enqueue == 0 || !view(a, at_a) || !view(b, at_b) || !view(c, at_c)) return not_taken();
  if (!same_device(at_a, at_b) || !same_device(at_a, at_c)) return not_taken();
  Call call;
  call.enqueue = reinterpret_cast<CutlassSkEnqueueFunction>(uintptr_t(enqueue));
  call.prepared = reinterpret_cast<void const*>(uintptr_t(prepared));
  call.owner = Reference::shared(owner);
  call.partials_bytes = partials_bytes;
  call.barrier_bytes = barrier_bytes;
  call.programmatic = programmatic != 0;
  if (pack != 0) {
    call.packing.function = reinterpret_cast<CutlassSkPackFunction>(uintptr_t(pack));
    std::memcpy(&call.packing.given, given, sizeof(CutlassSkPack));
  }
  CallTable& table = *of(self)->table;
  CallTable dropped;  // ends last: what its owners' deallocation does, it does to a table that is whole
  if (Py_ssize_t(table.size()) >= of(self)->capacity) table.swap(dropped);
  of(self)->out_dtype = at_c.dtype;
  std::swap(table[Signature(at_a, at_b, at_c)], call);
  Py_RETURN_NONE;
}

PyObject* make_calls(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static char const* const names[] = {"capacity", "dtype", nullptr};
  Py_ssize_t capacity;
  PyObject* dtype;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "nO:Calls", const_cast<char**>(names), &capacity, &dtype)) return nullptr;
  Reference options;
  if (dtype != Py_None) {
    options = Reference::taken(PyDict_New());
    if (!options || PyDict_SetItemString(options.get(), "dtype", dtype) != 0) return nullptr;
  }
  PyObject* const self = PyType_GenericAlloc(type, 0);
  if (self == nullptr) return nullptr;
  of(self)->table = new CallTable;
  of(self)->keywords = options.release();
  of(self)->capacity = capacity;
  of(self)->out_dtype = 0;
  return self;
}

void drop_calls(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  delete of(self)->table;
  Py_XDECREF(of(self)->keywords);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

Py_ssize_t length(PyObject* self) { return Py_ssize_t(of(self)->table->size()); }

PyMethodDef calls_methods[] = {
    {"repeat", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(repeat)), METH_FASTCALL,
     "repeat(a, b, c, alpha, beta): c, launched, if a call of the same signature was added; else None, and nothing happened."},
    {"add", add, METH_VARARGS,
     "add(a, b, c, enqueue, prepared, owner, partials_bytes, barrier_bytes, programmatic, pack=0, given=b''): launches of the\n"
     "operands' signature from now on call the C function at address enqueue with the prepared launch at address prepared; owner\n"
     "keeps both. pack is the address of the function that packs operands before, given the struct that says which."},
    {},
};

PyType_Slot calls_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(make_calls)},
    {Py_tp_dealloc, reinterpret_cast<void*>(drop_calls)},
    {Py_tp_methods, calls_methods},
    {Py_sq_length, reinterpret_cast<void*>(length)},
    {Py_tp_doc,
     const_cast<char*>("Calls(capacity, dtype): prepared launches by the signature of their operands. dtype is that of new "
                       "outputs, None if it is that of a. Full, it starts anew.")},
    {},
};

PyType_Spec calls_spec = {"cutlass_sk._native.Calls", sizeof(Calls), 0, Py_TPFLAGS_DEFAULT, calls_slots};

PyObject* bind(PyObject*, PyObject* arguments) {
  PyObject *tensor_type, *capsule, *increment_version, *inference_mode, *current_device, *is_capturing;
  if (!PyArg_ParseTuple(arguments, "OOOOOO:bind", &tensor_type, &capsule, &increment_version, &inference_mode, &current_device,
                        &is_capturing)) {
    return nullptr;
  }
  auto const* const found = static_cast<DLPackExchangeAPI const*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  if (found == nullptr) return nullptr;
  if (found->header.version.major != 1 || found->dltensor_from_py_object_no_sync == nullptr) {
    PyErr_Format(PyExc_RuntimeError, "torch's DLPack functions have version %u.%u; 1.x with views is needed",
                 found->header.version.major, found->header.version.minor);
    return nullptr;
  }
  Reference is_neg = Reference::taken(PyObject_GetAttrString(tensor_type, "is_neg"));
  Reference new_empty = Reference::taken(PyObject_GetAttrString(tensor_type, "new_empty"));
  Reference is_inference = Reference::taken(PyObject_GetAttrString(tensor_type, "is_inference"));
  Reference requires_grad = Reference::taken(PyUnicode_InternFromString("requires_grad"));
  if (!is_neg || !is_inference || !new_empty || !requires_grad) return nullptr;
  for (PyObject* object : {tensor_type, increment_version, current_device, is_capturing, inference_mode}) Py_INCREF(object);
  torch = {found,          tensor_type,  is_neg.release(),        is_inference.release(), new_empty.release(), increment_version,
           current_device, is_capturing, requires_grad.release(), inference_mode};
  Py_RETURN_NONE;
}

PyObject* unbind(PyObject*, PyObject*) {
  torch.tensor_type = nullptr;  // of no object's type: no call is taken from now on
  Py_RETURN_NONE;
}

PyObject* set_workspace(PyObject*, PyObject* arguments) {
  long long device, partials_bytes, barrier_bytes;
  unsigned long long stream, partials, barriers;
  PyObject* owner;
  if (!PyArg_ParseTuple(arguments, "LKKLKLO:set_workspace", &device, &stream, &partials, &partials_bytes, &barriers, &barrier_bytes,
                        &owner)) {
    return nullptr;
  }
  Workspace workspace;
  workspace.partials = reinterpret_cast<void*>(uintptr_t(partials));
  workspace.partials_bytes = partials_bytes;
  workspace.barriers = reinterpret_cast<void*>(uintptr_t(barriers));
  workspace.barrier_bytes = barrier_bytes;
  workspace.owner = Reference::shared(owner);
  std::swap(workspaces()[{device, uintptr_t(stream)}], workspace);
  Py_RETURN_NONE;
}

PyObject* forget_workspaces(PyObject*, PyObject*) {
  WorkspaceTable dropped;
  workspaces().swap(dropped);
  Py_RETURN_NONE;
}

/// decide(profiles, m, n, k, moved, row_a, row_b, chained)
PyObject* decide(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 8 || !PyBytes_Check(arguments[0])) {
    PyErr_SetString(PyExc_TypeError, "decide takes packed profiles, six whole numbers, and whether chains of sums end early");
    return nullptr;
  }
  Py_ssize_t const bytes = PyBytes_Size(arguments[0]), size = Py_ssize_t(sizeof(cutlass_sk::PackedProfile));
  int64_t numbers[6];
  for (int i = 0; i < 6; ++i) {
    numbers[i] = PyLong_AsLongLong(arguments[i + 1]);
    if (numbers[i] == -1 && PyErr_Occurred()) return nullptr;
  }
  if (bytes % size != 0 || bytes == 0 || size_t(bytes / size) > cutlass_sk::kMostKernels ||
      *std::min_element(numbers, numbers + 3) < 1) {
    PyErr_Format(PyExc_ValueError, "decide takes 1 to %zu profiles, and sizes of 1 or more", cutlass_sk::kMostKernels);
    return nullptr;
  }
  int const chained = PyObject_IsTrue(arguments[7]);
  if (chained < 0) return nullptr;
  auto const* const profiles = reinterpret_cast<cutlass_sk::PackedProfile const*>(PyBytes_AsString(arguments[0]));
  cutlass_sk::Decider decider(profiles, size_t(bytes / size), numbers[0], numbers[1], numbers[2], numbers[3], numbers[4],
                              numbers[5], chained != 0);
  auto const made = decider.decide();
  return Py_BuildValue("(dLLLLN)", made.time_us, static_cast<long long>(made.kernel), static_cast<long long>(made.shared),
                       static_cast<long long>(made.units), static_cast<long long>(made.splits), PyBool_FromLong(made.in_cluster));
}

PyMethodDef functions[] = {
    {"decide", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(decide)), METH_FASTCALL,
     "decide(profiles, m, n, k, bytes_moved, row_bytes_a, row_bytes_b, chained): (time_us, kernel, shared, units, splits,\n"
     "in_cluster), the planner's choice among packed profiles. chained: kernels that can end chains of sums early do."},
    {"bind", bind, METH_VARARGS,
     "bind(Tensor, Tensor.__dlpack_c_exchange_api__, increment_version, is_inference_mode_enabled, current_device, is_capturing):\n"
     "how tensors are seen."},
    {"unbind", unbind, METH_NOARGS, "Leaves all calls to the slow path from now on."},
    {"set_workspace", set_workspace, METH_VARARGS,
     "set_workspace(device, stream, partials, partials_bytes, barriers, barrier_bytes, owner): memory at these addresses is the\n"
     "stream's own, for launches that share tiles; owner keeps it."},
    {"forget_workspaces", forget_workspaces, METH_NOARGS, "Drops every stream's workspace."},
    {},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "cutlass_sk._native",
                          "Repeated calls of Gemm.run, and decisions of the planner.",
                          -1,
                          functions,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace
}  // namespace cutlass_sk

PyMODINIT_FUNC PyInit__native() {
  using namespace cutlass_sk;
  Reference module = Reference::taken(PyModule_Create(&definition));
  Reference type = Reference::taken(PyType_FromSpec(&calls_spec));
  if (!module || !type) return nullptr;
  if (PyModule_AddObjectRef(module.get(), "Calls", type.get()) != 0) return nullptr;
  if (PyModule_AddIntConstant(module.get(), "ABI_VERSION", CUTLASS_SK_ABI_VERSION) != 0) return nullptr;
  if (PyModule_AddIntConstant(module.get(), "MOST_KERNELS", long(cutlass_sk::kMostKernels)) != 0) return nullptr;
  if (PyModule_AddIntConstant(module.get(), "PROFILE_BYTES", long(sizeof(cutlass_sk::PackedProfile))) != 0) return nullptr;
  return module.release();
}
