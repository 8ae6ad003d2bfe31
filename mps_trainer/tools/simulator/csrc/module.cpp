// What Python sees of the device.
#include "redirect.h"
#include "state.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <tuple>
#include <vector>

namespace py = pybind11;

namespace simulator {

// Never destroyed, because the interpreter may be gone when static objects are.
static std::atomic<PyObject*> listener{nullptr};

void notify(const char* kind, const std::string& name) {
  if (listener.load() == nullptr) { // most calls: nobody asked, and the GIL is not needed
    return;
  }
  py::gil_scoped_acquire gil;
  if (auto* const callback = listener.load()) { // it may have gone while this thread waited for the GIL
    py::reinterpret_borrow<py::object>(callback)(kind, name); // its exceptions, Ctrl-C among them, go to the caller
  }
}

static void set_listener(const py::object& callback) {
  auto* const old = listener.exchange(callback.is_none() ? nullptr : callback.inc_ref().ptr());
  Py_XDECREF(old);
}

static py::dict counters() {
  auto& now = state();
  std::vector<std::tuple<std::string, uint64_t, size_t, bool>> called;
  { // no Python in here: making an object may collect garbage, which may run operators, which may want the mutex
    std::lock_guard<std::mutex> lock(now.mutex);
    for (const auto& [name, count] : now.operators) {
      if (count.calls() > 0) {
        called.emplace_back(name, count.calls(), count.graphs(), count.fell_back());
      }
    }
  }
  py::dict operators;
  for (const auto& [name, calls, graphs, fell_back] : called) {
    operators[py::str(name)] = py::make_tuple(calls, graphs, fell_back);
  }
  py::dict result;
  result["blocking_reads"] = now.blocking_reads.load();
  result["synchronizations"] = now.synchronizations.load();
  result["host_to_device"] = now.host_to_device.load();
  result["host_to_device_bytes"] = now.host_to_device_bytes.load();
  result["device_to_host"] = now.device_to_host.load();
  result["device_to_host_bytes"] = now.device_to_host_bytes.load();
  result["bytes_live"] = now.live.load();
  result["bytes_peak"] = now.peak.load();
  result["bytes_held"] = now.pool.held();
  result["operators"] = operators;
  return result;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("install", &install_device, "Add the device to this process; once.");
  m.def("register_kernels", &register_kernels, "Operators that hardware has a kernel for, that fall back always, and that read values.");
  m.def("stop_autograd_thread", &stop_autograd_thread, py::call_guard<py::gil_scoped_release>());
  m.def("set_active", [](bool active) { state().active = active; });
  m.def("set_fallback", [](bool fallback) { state().fallback = fallback; });
  m.def("set_shared_generator", [](bool shared) { state().shared_generator = shared; });
  m.def("set_memory", [](uint64_t recommended, double fraction) {
    state().recommended = recommended;
    state().fraction = fraction;
    state().pool.empty();
  });
  m.def("set_listener", &set_listener, "Called with the kind of an event and the operator's name.");
  m.def("counters", &counters);
  m.def("reset", &reset_counts);
}

} // namespace simulator
