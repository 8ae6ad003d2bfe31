#include "state.h"

namespace simulator {

State& state() {
  static State* const instance = new State(); // never destroyed: tensors outlive static destructors
  return *instance;
}

void OperatorCount::add_shapes(uint64_t shapes) {
  std::lock_guard<std::mutex> lock(mutex_);
  shapes_.insert(shapes);
  last_shapes_ = shapes;
}

size_t OperatorCount::graphs() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return forgotten_ + shapes_.size();
}

void OperatorCount::forget_shapes() {
  std::lock_guard<std::mutex> lock(mutex_);
  forgotten_ += shapes_.size();
  shapes_.clear();
  last_shapes_ = NO_SHAPES;
}

void OperatorCount::reset() {
  forget_shapes();
  std::lock_guard<std::mutex> lock(mutex_);
  calls_ = 0;
  fell_back_ = false;
  forgotten_ = 0;
}

OperatorCount& operator_count(const std::string& name) {
  std::lock_guard<std::mutex> lock(state().mutex);
  return state().operators[name];
}

void count_read(const char* name, bool fell_back) {
  ++state().blocking_reads;
  notify(fell_back ? "fallback" : "read", name);
}

void count_copy(bool to_device, uint64_t bytes) {
  auto& now = state();
  ++(to_device ? now.host_to_device : now.device_to_host);
  (to_device ? now.host_to_device_bytes : now.device_to_host_bytes) += bytes;
}

void forget_shapes() {
  std::lock_guard<std::mutex> lock(state().mutex);
  for (auto& [name, count] : state().operators) {
    count.forget_shapes();
  }
}

void reset_counts() {
  auto& now = state();
  std::lock_guard<std::mutex> lock(now.mutex);
  for (auto& [name, count] : now.operators) {
    count.reset();
  }
  for (auto* count :
       {&now.blocking_reads, &now.synchronizations, &now.host_to_device, &now.host_to_device_bytes,
        &now.device_to_host, &now.device_to_host_bytes}) {
    *count = 0;
  }
  now.peak = now.live.load();
}

} // namespace simulator
