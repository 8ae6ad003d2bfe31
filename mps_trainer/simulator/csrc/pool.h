// What torch's MPS allocator takes from the system: heaps, cut into buffers that are kept when nobody uses them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace simulator {

struct Heap;

struct Buffer {
  size_t size;
  Heap* heap;
};

// Accounts for memory as torch 2.13 does on hardware (aten/src/ATen/mps/MPSAllocator.h); the memory itself is ordinary
// memory. Left out: what Metal's graphs take, how buffers lie within a heap, and the collection of old buffers past the
// low watermark.
class BufferPool {
 public:
  // A buffer for `bytes`; `limit` is what all heaps together may take before unused ones are given back, 0 for none.
  Buffer* take(size_t bytes, double limit);
  void give_back(Buffer* buffer);
  // Gives unused buffers back, and the heaps that have no other.
  void empty();
  uint64_t held() const; // bytes of all heaps

 private:
  struct Kind {
    std::multimap<size_t, Heap*> heaps; // by what is left in them
    std::multimap<size_t, Buffer*> unused; // by size
  };
  Kind& kind_of(size_t size);
  Buffer* reuse(Kind& kind, size_t size);
  void release(Kind& kind, std::multimap<size_t, Buffer*>::iterator unused, bool with_heap);
  void release_all();
  static void move(Kind& kind, Heap* heap, size_t available);

  mutable std::mutex mutex_;
  Kind small_, large_;
  uint64_t held_ = 0;
};

} // namespace simulator
