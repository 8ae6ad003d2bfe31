#include "pool.h"

#include <algorithm>

namespace simulator {

struct Heap {
  size_t total, available;
  size_t buffers = 0;
};

namespace {
constexpr size_t MIB = size_t(1) << 20;
constexpr size_t ALIGNED = 256;
constexpr size_t SMALL = MIB, SMALL_HEAP = 8 * MIB;
constexpr size_t LARGE = 10 * MIB, LARGE_HEAP = 32 * MIB;
constexpr size_t XLARGE_HEAP = 1024 * MIB;
constexpr size_t ROUNDED = 2 * MIB;

size_t round_up(size_t size, size_t to) {
  return (size + to - 1) / to * to;
}

size_t heap_for(size_t size) {
  if (size <= SMALL) {
    return SMALL_HEAP;
  }
  if (size < LARGE) {
    return LARGE_HEAP;
  }
  return size < XLARGE_HEAP / 2 ? XLARGE_HEAP : round_up(size, ROUNDED);
}
} // namespace

BufferPool::Kind& BufferPool::kind_of(size_t size) {
  return size <= SMALL ? small_ : large_;
}

// Puts the heap where what is left in it says.
void BufferPool::move(Kind& kind, Heap* heap, size_t available) {
  auto [begin, end] = kind.heaps.equal_range(heap->available);
  const auto found = std::find_if(begin, end, [heap](const auto& entry) { return entry.second == heap; });
  if (found != end) {
    kind.heaps.erase(found);
  }
  heap->available = available;
  kind.heaps.emplace(available, heap);
}

Buffer* BufferPool::reuse(Kind& kind, size_t size) {
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

Buffer* BufferPool::take(size_t bytes, double limit) {
  if (bytes == 0) {
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t size = round_up(bytes, ALIGNED);
  auto& kind = kind_of(size);
  if (auto* const buffer = reuse(kind, size)) {
    return buffer;
  }
  auto room = kind.heaps.lower_bound(size);
  if (room == kind.heaps.end() && limit > 0 && static_cast<double>(held_ + size) > limit) {
    release_all();
    room = kind.heaps.lower_bound(size);
  }
  Heap* heap;
  if (room != kind.heaps.end()) {
    heap = room->second;
  } else {
    const size_t total = heap_for(size);
    heap = new Heap{total, total};
    held_ += total;
  }
  ++heap->buffers;
  move(kind, heap, heap->available - size);
  return new Buffer{size, heap};
}

void BufferPool::give_back(Buffer* buffer) {
  if (buffer != nullptr) {
    std::lock_guard<std::mutex> lock(mutex_);
    kind_of(buffer->size).unused.emplace(buffer->size, buffer);
  }
}

void BufferPool::release(Kind& kind, std::multimap<size_t, Buffer*>::iterator unused, bool with_heap) {
  auto* const buffer = unused->second;
  auto* const heap = buffer->heap;
  kind.unused.erase(unused);
  move(kind, heap, heap->available + buffer->size);
  delete buffer;
  if (--heap->buffers == 0 && with_heap) {
    auto [begin, end] = kind.heaps.equal_range(heap->available);
    kind.heaps.erase(std::find_if(begin, end, [heap](const auto& entry) { return entry.second == heap; }));
    held_ -= heap->total;
    delete heap;
  }
}

void BufferPool::release_all() {
  for (auto* kind : {&small_, &large_}) {
    while (!kind->unused.empty()) {
      release(*kind, kind->unused.begin(), true);
    }
  }
}

void BufferPool::empty() {
  std::lock_guard<std::mutex> lock(mutex_);
  release_all();
}

uint64_t BufferPool::held() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return held_;
}

} // namespace simulator
