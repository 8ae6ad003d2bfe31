// What torch's MPS allocator takes from the system: heaps, cut into buffers that are kept when nobody uses them.
#pragma once

#include <torch/version.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

// From torch 2.14 on, what is free in a heap is split and joined (pool_split_join.cpp), and there is pinned memory.
#define FROM_TORCH_2_14 (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14)

namespace simulator {

struct Buffer;

// Accounts for memory as the installed torch does on hardware (aten/src/ATen/mps/MPSAllocator.h); the memory itself is
// ordinary memory. Left out: what Metal's graphs take, how Metal places buffers in a heap before torch 2.14, and the
// collection of old buffers past the low watermark.
class BufferPool {
 public:
  BufferPool();
  ~BufferPool();
  // A buffer for `bytes`; `limit` is what all heaps together may take before unused ones are given back, 0 for none.
  Buffer* take(size_t bytes, double limit);
  void give_back(Buffer* buffer);
  // Gives back the heaps in which no buffer is in use.
  void empty();
  uint64_t held() const; // bytes of all heaps

 private:
  struct Heaps;
  mutable std::mutex mutex_;
  std::unique_ptr<Heaps> heaps_;
};

constexpr size_t MIB = size_t(1) << 20;
constexpr size_t ALIGNED = 256;
constexpr size_t SMALL = MIB; // the largest buffer of a small heap
constexpr size_t LARGE_HEAP = 32 * MIB;

inline size_t round_up(size_t size, size_t to) {
  return (size + to - 1) / to * to;
}

// The size of a new heap for a buffer of `size`.
inline size_t heap_for(size_t size) {
  constexpr size_t small_heap = 8 * MIB, extra_large_heap = 1024 * MIB;
  if (size <= SMALL) {
    return small_heap;
  }
  if (size < 10 * MIB) {
    return LARGE_HEAP;
  }
  return size < extra_large_heap / 2 ? extra_large_heap : round_up(size, 2 * MIB);
}

} // namespace simulator
