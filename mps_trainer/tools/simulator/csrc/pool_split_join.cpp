// The allocator of torch from 2.14 on: a heap is a row of blocks. A free one that is larger than what is asked for is
// split, and neighbours that are free are joined when no single one is large enough (pytorch pull request 188045).
#include "pool.h"

#if FROM_TORCH_2_14

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

namespace simulator {

struct Heap {
  size_t number, total, free;
  bool is_small;
  Buffer* first = nullptr;
};

// A part of a heap. One that has been in use is cached: it is handed out again as it is where its size nearly fits.
struct Buffer {
  size_t size, offset;
  Heap* heap;
  Buffer* next = nullptr;
  bool in_use = false, cached = false;
};

struct BySize {
  bool operator()(const Buffer* a, const Buffer* b) const {
    return std::tuple(a->size, a->heap->number, a->offset) < std::tuple(b->size, b->heap->number, b->offset);
  }
};

struct BufferPool::Heaps {
  struct Kind {
    size_t least; // bytes of a free block that is worth keeping apart
    std::set<Buffer*, BySize> free, cached;
    std::vector<Heap*> heaps; // from the oldest to the newest
  };
  Kind small{ALIGNED, {}, {}, {}}, large{SMALL, {}, {}, {}};
  uint64_t held = 0;
  size_t made = 0;

  // What is taken for a request: of large ones 32 sizes for each doubling, unless that needs a heap of another size.
  static size_t size_for(size_t bytes) {
    const size_t aligned = round_up(bytes, ALIGNED);
    if (aligned <= SMALL) {
      return aligned;
    }
    size_t doubling = SMALL;
    while (doubling <= aligned / 2) {
      doubling *= 2;
    }
    constexpr size_t page = 16 << 10; // bytes, on Apple silicon
    const size_t rounded = round_up(aligned, std::max(doubling / 32, page));
    const bool same_heap = heap_for(rounded) == heap_for(aligned) || aligned >= 512 * MIB;
    return same_heap ? rounded : aligned;
  }

  static void add_free(Kind& kind, Buffer* block) {
    kind.free.insert(block);
    if (block->cached) {
      kind.cached.insert(block);
    }
  }

  static void remove_free(Kind& kind, Buffer* block) {
    kind.free.erase(block);
    kind.cached.erase(block);
  }

  static Buffer* use(Kind& kind, Buffer* block, size_t size) {
    remove_free(kind, block);
    if (block->size - size >= kind.least) {
      auto* const rest = new Buffer{block->size - size, block->offset + size, block->heap, block->next};
      block->next = rest;
      block->size = size;
      add_free(kind, rest);
    }
    block->heap->free -= block->size;
    block->in_use = block->cached = true;
    return block;
  }

  // The first run of free neighbours that is large enough, as one block.
  static Buffer* join(Kind& kind, size_t size) {
    for (auto* heap : kind.heaps) {
      Buffer* first = nullptr;
      size_t run = 0;
      for (auto* block = heap->free < size ? nullptr : heap->first; block != nullptr; block = block->next) {
        if (block->in_use) {
          first = nullptr;
          run = 0;
          continue;
        }
        first = first == nullptr ? block : first;
        run += block->size;
        if (run >= size) {
          return merge(kind, first, block);
        }
      }
    }
    return nullptr;
  }

  static Buffer* merge(Kind& kind, Buffer* first, Buffer* last) {
    auto* const after = last->next;
    remove_free(kind, first);
    for (auto* block = first->next; block != after;) {
      auto* const next = block->next;
      remove_free(kind, block);
      first->size += block->size;
      delete block;
      block = next;
    }
    first->next = after;
    first->cached = false;
    add_free(kind, first);
    return first;
  }

  static Buffer* find(Kind& kind, size_t size) {
    Heap before_all{0, 0, 0, false};
    Buffer key{size, 0, &before_all};
    const auto as_it_is = kind.cached.lower_bound(&key);
    if (as_it_is != kind.cached.end() && (*as_it_is)->size - size < kind.least) {
      return *as_it_is;
    }
    const auto smallest = kind.free.lower_bound(&key);
    return smallest != kind.free.end() ? *smallest : join(kind, size);
  }

  Buffer* take(size_t bytes, double limit) {
    const size_t size = size_for(bytes);
    const bool is_small = size <= SMALL;
    auto& kind = is_small ? small : large;
    if (auto* const block = find(kind, size)) {
      return use(kind, block, size);
    }
    if (limit > 0 && static_cast<double>(held + size) > limit) {
      release_all();
    }
    const size_t total = heap_for(size);
    auto* const heap = new Heap{++made, total, total, is_small};
    heap->first = new Buffer{total, 0, heap};
    kind.heaps.push_back(heap);
    held += total;
    add_free(kind, heap->first);
    return use(kind, heap->first, size);
  }

  void give_back(Buffer* block) {
    block->in_use = false;
    block->heap->free += block->size;
    add_free(block->heap->is_small ? small : large, block);
  }

  void release_all() {
    for (auto* kind : {&small, &large}) {
      const auto is_used = [](const Heap* heap) { return heap->free != heap->total; };
      const auto unused = std::stable_partition(kind->heaps.begin(), kind->heaps.end(), is_used);
      for (auto heap = unused; heap != kind->heaps.end(); ++heap) {
        release(*kind, *heap);
      }
      kind->heaps.erase(unused, kind->heaps.end());
    }
  }

  void release(Kind& kind, Heap* heap) {
    for (auto* block = heap->first; block != nullptr;) {
      auto* const next = block->next;
      remove_free(kind, block);
      delete block;
      block = next;
    }
    held -= heap->total;
    delete heap;
  }
};

} // namespace simulator

#include "pool_methods.h"

#endif
