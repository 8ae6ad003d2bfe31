// What the simulated device is and what it has counted. One per process.
#pragma once

#include "pool.h"

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace simulator {

inline c10::Device device() {
  return c10::Device(c10::DeviceType::MPS, 0);
}

// How often an operator ran, and for how many shapes: each is a graph that hardware compiles if the operator's kernel
// builds one. A step runs thousands of operators, mostly with the shapes of the call before, so that case takes no lock.
class OperatorCount {
 public:
  // `shapes`: a hash of the sizes and dtypes of all tensor arguments.
  void add(uint64_t shapes) {
    calls_.fetch_add(1, std::memory_order_relaxed);
    if (last_shapes_.load(std::memory_order_relaxed) != shapes) {
      add_shapes(shapes);
    }
  }
  void add_without_graph() {
    calls_.fetch_add(1, std::memory_order_relaxed);
  }
  void mark_fallback() {
    fell_back_ = true;
  }
  uint64_t calls() const {
    return calls_;
  }
  bool fell_back() const {
    return fell_back_;
  }
  size_t graphs() const; // for shapes that were new, or new again after forget_shapes()
  void forget_shapes();
  void reset();

 private:
  void add_shapes(uint64_t shapes);
  static constexpr uint64_t NO_SHAPES = 0;
  std::atomic<uint64_t> calls_{0};
  std::atomic<uint64_t> last_shapes_{NO_SHAPES};
  std::atomic<bool> fell_back_{false};
  mutable std::mutex mutex_;
  std::unordered_set<uint64_t> shapes_;
  size_t forgotten_ = 0;
};

struct State {
  std::atomic<bool> active{false};
  std::atomic<bool> fallback{false};
  std::atomic<bool> shared_generator{false}; // draw from the CPU's default generator
  std::atomic<uint64_t> recommended{0}; // bytes
  std::atomic<double> fraction{1.0}; // of the recommended maximum; 0: no limit
  std::atomic<uint64_t> live{0}, peak{0}; // bytes in tensors
  BufferPool pool; // and what is held for them

  std::atomic<uint64_t> blocking_reads{0}; // the host waits for the queue of the device
  std::atomic<uint64_t> synchronizations{0};
  std::atomic<uint64_t> host_to_device{0}, host_to_device_bytes{0};
  std::atomic<uint64_t> device_to_host{0}, device_to_host_bytes{0};

  std::mutex mutex; // guards what follows
  std::unordered_map<std::string, OperatorCount> operators; // entries stay where they are, and are never removed
};

State& state();

// The count of the operator of this name, for good: keep the reference instead of asking at each call.
OperatorCount& operator_count(const std::string& name);
void count_read(const char* name, bool fell_back = false); // and tells the listener
void count_copy(bool to_device, uint64_t bytes);
void reset_counts();
void forget_shapes(); // of all operators: their graphs are compiled again

// Calls back into Python, if anybody listens: `kind` is "read" or "fallback". Set in module.cpp.
void notify(const char* kind, const std::string& name);

// device.cpp
c10::Allocator* allocator();
Buffer* charge(size_t bytes); // raises when the limit would be passed
void discharge(size_t bytes, Buffer* buffer);
void install_device();
void stop_autograd_thread();

// host.cpp: tensors on the device as the CPU sees them
void refuse_dtype(c10::ScalarType dtype);
at::Tensor host_alias(const at::Tensor& tensor);
uint64_t hash_shape(uint64_t hash, const at::Tensor& tensor);
constexpr uint64_t EMPTY_HASH = 1469598103934665603ULL;

template <typename... Tensors>
uint64_t hash_shapes(const Tensors&... tensors) {
  uint64_t hash = EMPTY_HASH;
  ((hash = hash_shape(hash, tensors)), ...);
  return hash;
}

} // namespace simulator
