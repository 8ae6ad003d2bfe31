// The allocator of torch until 2.13: a buffer that is given back keeps its size, and serves requests up to that size.
#include "pool.h"

#if !FROM_TORCH_2_14

#include <algorithm>
#include <map>

namespace simulator {

struct Heap {
  size_t total, available;
  size_t buffers = 0;
};

struct Buffer {
  size_t size;
  Heap* heap;
};

struct BufferPool::Heaps {
  struct Kind {
    std::multimap<size_t, Heap*> heaps; // by what is left in them
    std::multimap<size_t, Buffer*> unused; // by size
  };
  Kind small, large;
  uint64_t held = 0;

  Kind& kind_of(size_t size) {
    return size <= SMALL ? small : large;
  }

  // Puts the heap where what is left in it says.
  static void move(Kind& kind, Heap* heap, size_t available) {
    auto [begin, end] = kind.heaps.equal_range(heap->available);
    const auto found = std::find_if(begin, end, [heap](const auto& entry) { return entry.second == heap; });
    if (found != end) {
      kind.heaps.erase(found);
    }
    heap->available = available;
    kind.heaps.emplace(available, heap);
  }

  Buffer* reuse(Kind& kind, size_t size) {
    const auto found = kind.unused.lower_bound(size);
    if (found == kind.unused.end()) {
      return nullptr;
    }
    if (found->first <= size + LARGE_HEAP) {
      auto* const buffer = found->second;
      kind.unused.erase(found);
      return buffer;
    }
    if (kind.heaps.lower_bound(size) == kind.heaps.end()) {
      release(kind, found, false); // much too large: its place in the heap is cut anew
    }
    return nullptr;
  }

  void release(Kind& kind, std::multimap<size_t, Buffer*>::iterator unused, bool with_heap) {
    auto* const buffer = unused->second;
    auto* const heap = buffer->heap;
    kind.unused.erase(unused);
    move(kind, heap, heap->available + buffer->size);
    delete buffer;
    if (--heap->buffers == 0 && with_heap) {
      auto [begin, end] = kind.heaps.equal_range(heap->available);
      kind.heaps.erase(std::find_if(begin, end, [heap](const auto& entry) { return entry.second == heap; }));
      held -= heap->total;
      delete heap;
    }
  }

  void release_all() {
    for (auto* kind : {&small, &large}) {
      while (!kind->unused.empty()) {
        release(*kind, kind->unused.begin(), true);
      }
    }
  }

  Buffer* take(size_t bytes, double limit) {
    const size_t size = round_up(bytes, ALIGNED);
    auto& kind = kind_of(size);
    if (auto* const buffer = reuse(kind, size)) {
      return buffer;
    }
    auto room = kind.heaps.lower_bound(size);
    if (room == kind.heaps.end() && limit > 0 && static_cast<double>(held + size) > limit) {
      release_all();
      room = kind.heaps.lower_bound(size);
    }
    Heap* heap;
    if (room != kind.heaps.end()) {
      heap = room->second;
    } else {
      const size_t total = heap_for(size);
      heap = new Heap{total, total};
      held += total;
    }
    ++heap->buffers;
    move(kind, heap, heap->available - size);
    return new Buffer{size, heap};
  }

  void give_back(Buffer* buffer) {
    kind_of(buffer->size).unused.emplace(buffer->size, buffer);
  }
};

} // namespace simulator

#include "pool_methods.h"

#endif
