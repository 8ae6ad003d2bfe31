// The methods of BufferPool, for the one file that defines its heaps.
#pragma once

namespace simulator {

BufferPool::BufferPool() : heaps_(std::make_unique<Heaps>()) {}
BufferPool::~BufferPool() = default;

Buffer* BufferPool::take(size_t bytes, double limit) {
  if (bytes == 0) {
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  return heaps_->take(bytes, limit);
}

void BufferPool::give_back(Buffer* buffer) {
  if (buffer != nullptr) {
    std::lock_guard<std::mutex> lock(mutex_);
    heaps_->give_back(buffer);
  }
}

void BufferPool::empty() {
  std::lock_guard<std::mutex> lock(mutex_);
  heaps_->release_all();
}

uint64_t BufferPool::held() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return heaps_->held;
}

} // namespace simulator
