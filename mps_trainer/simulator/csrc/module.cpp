// What Python sees of the device.
#include "state.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace py = pybind11;

namespace simulator {

// Never destroyed, because the interpreter may be gone when static objects are.
static PyObject* listener = nullptr;

void notify(const char* kind, const std::string& name) {
  if (listener == nullptr) {
    return;
  }
  py::gil_scoped_acquire gil;
  py::reinterpret_borrow<py::object>(listener)(kind, name);
}

static void set_listener(const py::object& callback) {
  auto* const old = listener;
  listener = callback.is_none() ? nullptr : callback.inc_ref().ptr();
  Py_XDECREF(old);
}

static py::dict counters() {
  std::lock_guard<std::mutex> lock(state().mutex);
  const auto& now = state().counters;
  py::dict operators;
  for (const auto& [name, count] : now.operators) {
    operators[py::str(name)] = py::make_tuple(count.calls, count.shapes.size(), count.fell_back);
  }
  py::dict result;
  result["blocking_reads"] = now.blocking_reads;
  result["synchronizations"] = now.synchronizations;
  result["host_to_device"] = now.host_to_device;
  result["host_to_device_bytes"] = now.host_to_device_bytes;
  result["device_to_host"] = now.device_to_host;
  result["device_to_host_bytes"] = now.device_to_host_bytes;
  result["bytes_live"] = state().live.load();
  result["bytes_peak"] = state().peak.load();
  result["operators"] = operators;
  return result;
}

static void reset() {
  std::lock_guard<std::mutex> lock(state().mutex);
  state().counters = Counters();
  state().warned.clear();
  state().peak = state().live.load();
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("install", &install_device, "Add the device to this process; once.");
  m.def("register_kernels", &register_kernels, "Operators that hardware has a kernel for, and that fall back always.");
  m.def("stop_autograd_thread", &stop_autograd_thread, py::call_guard<py::gil_scoped_release>());
  m.def("set_active", [](bool active) { state().active = active; });
  m.def("set_fallback", [](bool fallback) { state().fallback = fallback; });
  m.def("set_shared_generator", [](bool shared) { state().shared_generator = shared; });
  m.def("set_memory", [](uint64_t recommended, double fraction) {
    state().recommended = recommended;
    state().fraction = fraction;
  });
  m.def("set_listener", &set_listener, "Called with the kind of an event and the operator's name.");
  m.def("counters", &counters);
  m.def("reset", &reset);
}

} // namespace simulator
