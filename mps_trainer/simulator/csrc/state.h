// What the simulated device is and what it has counted. One per process.
#pragma once

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

struct OperatorCount {
  uint64_t calls = 0;
  bool fell_back = false;
  std::unordered_set<uint64_t> shapes; // a hash of the sizes and dtypes of all tensor arguments
};

struct Counters {
  uint64_t blocking_reads = 0; // the host waits for the queue of the device
  uint64_t host_to_device = 0, host_to_device_bytes = 0;
  uint64_t device_to_host = 0, device_to_host_bytes = 0;
  uint64_t synchronizations = 0;
  std::unordered_map<std::string, OperatorCount> operators;
};

struct State {
  std::atomic<bool> active{false};
  std::atomic<bool> fallback{false};
  std::atomic<bool> shared_generator{false}; // draw from the CPU's default generator
  std::atomic<uint64_t> recommended{0}; // bytes
  std::atomic<double> fraction{1.0}; // of the recommended maximum; 0: no limit
  std::atomic<uint64_t> live{0}, peak{0}; // bytes

  std::mutex mutex; // guards what follows
  Counters counters;
  std::unordered_set<std::string> warned; // operators whose fallback has been reported
};

State& state();

// Adds one call of an operator, with the shapes that a graph would be compiled for.
void count_operator(const std::string& name, uint64_t shapes, bool fell_back = false);
void count_read(const char* name);
void count_copy(bool to_device, uint64_t bytes);

// Calls back into Python, if anybody listens: `kind` is "read" or "fallback". Set in module.cpp.
void notify(const char* kind, const std::string& name);

// device.cpp
c10::Allocator* allocator();
void charge(size_t bytes); // raises when the limit would be passed
void discharge(size_t bytes);
const at::Generator& default_generator();
at::Generator host_generator(const at::Generator& generator); // what a CPU kernel draws from in its stead
void install_device();
void stop_autograd_thread();

// host.cpp: tensors on the device as the CPU sees them
void refuse_dtype(c10::ScalarType dtype);
at::Tensor host_alias(const at::Tensor& tensor);
uint64_t hash_shape(uint64_t hash, const at::Tensor& tensor);
constexpr uint64_t EMPTY_HASH = 1469598103934665603ULL;

// kernels.cpp
void register_kernels(const std::vector<std::string>& native, const std::vector<std::string>& always_fall_back);

} // namespace simulator
