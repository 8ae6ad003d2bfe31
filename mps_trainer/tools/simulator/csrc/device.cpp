// The device itself: its one stream, its memory, and the thread that autograd runs it on.
#include "random.h"

#include <unistd.h>

#include <ATen/Context.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <future>
#include <new>
#include <thread>
#include <typeinfo>
#include <unordered_set>

namespace simulator {

// Memory ----------------------------------------------------------------------------------------------------------

static std::string readable(double bytes) {
  const char* const units[] = {"bytes", "KiB", "MiB", "GiB"};
  int unit = 0;
  for (; bytes >= 1024 && unit < 3; ++unit) {
    bytes /= 1024;
  }
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.2f %s", bytes, units[unit]);
  return text;
}

Buffer* charge(size_t bytes) {
  auto& now = state();
  const uint64_t live = now.live.fetch_add(bytes) + bytes;
  const double limit = now.fraction * static_cast<double>(now.recommended);
  if (limit > 0 && static_cast<double>(live) > limit) {
    now.live.fetch_sub(bytes);
    TORCH_CHECK(
        false, "MPS backend out of memory (MPS allocated: ", readable(static_cast<double>(live - bytes)),
        ", max allowed: ", readable(limit), "). Tried to allocate ", readable(static_cast<double>(bytes)),
        " on the simulated device. Use a smaller batch, gradient accumulation or gradient checkpointing, or simulate "
        "a Mac with more memory; on hardware PYTORCH_MPS_HIGH_WATERMARK_RATIO sets the limit.");
  }
  uint64_t peak = now.peak;
  while (live > peak && !now.peak.compare_exchange_weak(peak, live)) {
  }
  return now.pool.take(bytes, limit);
}

void discharge(size_t bytes, Buffer* buffer) {
  state().live.fetch_sub(bytes);
  state().pool.give_back(buffer);
}

struct Block {
  c10::DataPtr host;
  size_t bytes;
  Buffer* buffer;
};

static void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  discharge(block->bytes, block->buffer);
  delete block;
}

struct DeviceAllocator final : public c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto* const buffer = charge(bytes);
    auto* block = new Block{c10::GetCPUAllocator()->allocate(bytes), bytes, buffer};
    return {block->host.get(), block, &free_block, device()};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

  // What torch.accelerator asks.
  bool initialized() override {
    return state().active;
  }
  void emptyCache(c10::MempoolId_t) override {
    ++state().synchronizations; // as hardware does before it releases a buffer
    state().pool.empty();
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    for (auto* bytes : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
      auto& total = (*bytes)[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
      total.current = static_cast<int64_t>(state().live.load());
      total.peak = static_cast<int64_t>(state().peak.load());
    }
    auto& reserved = stats.reserved_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    reserved.current = static_cast<int64_t>(state().pool.held());
    reserved.peak = std::max(reserved.peak, reserved.current);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {
    state().peak = state().live.load();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    const uint64_t total = state().recommended;
    return {total - std::min<uint64_t>(total, state().live), total};
  }
};

c10::Allocator* allocator() {
  static auto* const instance = new DeviceAllocator();
  return instance;
}

// Pinned memory is memory of the CPU here, as it is on hardware; it is only known by its address.
static std::unordered_set<const void*>& pinned_memory() {
  static auto* const instance = new std::unordered_set<const void*>();
  return *instance;
}

static void free_pinned(void* context) {
  auto* const memory = static_cast<c10::DataPtr*>(context);
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    pinned_memory().erase(memory->get());
  }
  delete memory;
}

struct PinnedAllocator final : public c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto* const memory = new c10::DataPtr(c10::GetCPUAllocator()->allocate(bytes));
    std::lock_guard<std::mutex> lock(state().mutex);
    pinned_memory().insert(memory->get());
    return {memory->get(), memory, &free_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

// Guard and hooks -------------------------------------------------------------------------------------------------

static double milliseconds() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

// There is one device and one stream, and every kernel has finished when its call returns: nothing ever waits.
struct DeviceGuard final : public c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream() {
    return c10::Stream(c10::Stream::DEFAULT, device());
  }
  c10::DeviceType type() const override {
    return c10::DeviceType::MPS;
  }
  c10::Device exchangeDevice(c10::Device) const override {
    return device();
  }
  c10::Device getDevice() const override {
    return device();
  }
  void setDevice(c10::Device to) const override {
    TORCH_CHECK(
        to.is_mps() && to.index() <= 0, "Expected the one mps device, whose index is 0, but got ", to,
        ". A Mac has a single mps device.");
  }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override {
    return stream();
  }
  c10::Stream getDefaultStream(c10::Device) const override {
    return stream();
  }
  c10::Stream getNewStream(c10::Device, int) const override {
    return stream();
  }
  c10::Stream exchangeStream(c10::Stream) const override {
    return stream();
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return state().active ? 1 : 0;
  }
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {
    at::detail::getMPSHooks().deviceSynchronize();
  }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new double;
    }
    *static_cast<double*>(*event) = milliseconds();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<double*>(event);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    return *static_cast<double*>(end) - *static_cast<double*>(start);
  }
};

static std::unordered_map<uint32_t, double>& events() {
  static auto* const instance = new std::unordered_map<uint32_t, double>();
  return *instance;
}

// Without members of its own, because it takes the place of an object of its base class: see install_device().
struct Hooks final : public at::MPSHooksInterface {
  void init() const override {}
  bool hasMPS() const override {
    return state().active;
  }
  bool isBuilt() const override {
    return state().active;
  }
  bool isAvailable() const override {
    return state().active;
  }
  c10::DeviceIndex deviceCount() const override {
    return state().active ? 1 : 0;
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    DeviceGuard().setDevice(c10::Device(c10::DeviceType::MPS, index));
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return 0;
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }
  bool isOnMacOSorNewer(unsigned major, unsigned minor) const override {
    return major < 15 || (major == 15 && minor <= 1); // a current macOS, as far as torch asks
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return default_generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return new_generator();
  }
  c10::Allocator* getMPSDeviceAllocator() const override {
    return allocator();
  }
  void deviceSynchronize() const override {
    ++state().synchronizations;
  }
  void commitStream() const override {}
  void emptyCache() const override {
    static_cast<DeviceAllocator*>(allocator())->emptyCache({0, 0});
    forget_shapes(); // hardware drops its compiled graphs here, and here alone
  }
  size_t getCurrentAllocatedMemory() const override {
    return state().live;
  }
  size_t getDriverAllocatedMemory() const override {
    return state().pool.held();
  }
  size_t getRecommendedMaxMemory() const override {
    return state().recommended;
  }
  size_t getMaxBufferLength() const override {
    return state().recommended;
  }
  void setMemoryFraction(double fraction) const override {
    TORCH_CHECK(fraction >= 0 && fraction <= 2, "invalid high watermark ratio ", fraction, ": it goes from 0 to 2");
    state().fraction = fraction;
  }
  void profilerStartTrace(const std::string&, bool) const override {}
  void profilerStopTrace() const override {}
  uint32_t acquireEvent(bool) const override {
    std::lock_guard<std::mutex> lock(state().mutex);
    static uint32_t last = 0;
    events()[++last] = milliseconds();
    return last;
  }
  void releaseEvent(uint32_t event) const override {
    std::lock_guard<std::mutex> lock(state().mutex);
    events().erase(event);
  }
  void recordEvent(uint32_t event) const override {
    std::lock_guard<std::mutex> lock(state().mutex);
    events()[event] = milliseconds();
  }
  void waitForEvent(uint32_t) const override {}
  void synchronizeEvent(uint32_t) const override {}
  bool queryEvent(uint32_t) const override {
    return true;
  }
  double elapsedTimeOfEvents(uint32_t start, uint32_t end) const override {
    std::lock_guard<std::mutex> lock(state().mutex);
    return events().at(end) - events().at(start);
  }
  c10::Device getDeviceFromPtr(void*) const override {
    return device();
  }
  bool isPinnedPtr(const void* data) const override {
    std::lock_guard<std::mutex> lock(state().mutex);
    return pinned_memory().count(data) > 0;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    TORCH_CHECK(
        FROM_TORCH_2_14,
        "Attempted to set the storage of a tensor on device \"cpu\" to a storage on different device \"mps:0\": there "
        "is no pinned memory with mps before torch 2.14 (pytorch issue 86060). Leave out pin_memory, or update torch.");
    static auto* const instance = new PinnedAllocator();
    return instance;
  }
};

// The autograd engine makes its device threads once, for the devices that it finds at the first backward(). That may
// be long past, so the thread of this device is added by hand. `Members` only names what is protected in Engine.
struct Members : public torch::autograd::Engine {
  using torch::autograd::Engine::device_ready_queues_;
};

static std::thread* autograd_thread = nullptr; // never destroyed: a thread that is not joined aborts the process then
static std::future<void>* autograd_thread_ended = nullptr;
static pid_t owner = 0; // of that thread: a process that was forked off has none

static void start_autograd_thread() {
  auto& engine = torch::autograd::Engine::get_default_engine();
  engine.initialize_device_threads_pool(); // before the device is active, so that the engine starts no thread for it
  auto& queues = engine.*(&Members::device_ready_queues_);
  TORCH_CHECK(
      queues.empty(), "The simulated mps device cannot be installed beside ", queues.size(),
      " other accelerator(s). Is there a GPU that hide_cuda() was not told of?");
  queues.push_back(std::make_shared<torch::autograd::ReadyQueue>());
  owner = getpid();
  std::promise<void> ended;
  autograd_thread_ended = new std::future<void>(ended.get_future());
  autograd_thread = new std::thread([queue = queues[0], &engine, ended = std::move(ended)]() mutable {
    engine.thread_init(0, queue, true);
    ended.set_value();
  });
}

// To be called without the GIL, before the interpreter goes: the thread takes the GIL once more on its way out, and
// an interpreter that is being finalized would kill it then and abort the process.
void stop_autograd_thread() {
  // In a forked process this call makes a new engine. The old one would wait ten seconds at exit for its threads.
  auto& engine = torch::autograd::Engine::get_default_engine();
  engine.stop(); // tells the threads to end, and waits until they are about to
  // Where another thread of Python is left in the middle of backward, it does not end. torch aborts then on any device.
  const auto at_most = std::chrono::seconds(2);
  if (owner == getpid() && autograd_thread_ended->wait_for(at_most) == std::future_status::ready) {
    autograd_thread->join();
  }
}

void install_device() {
  c10::SetAllocator(c10::DeviceType::MPS, allocator());
  c10::impl::registerDeviceGuard(c10::DeviceType::MPS, new DeviceGuard());
  // torch looks for hooks once, and may have found none already. The object that it keeps then is a plain
  // MPSHooksInterface, which has no data members; ours is as large and takes its place.
  static_assert(sizeof(Hooks) == sizeof(at::MPSHooksInterface), "Hooks has to fit where its base class stands");
  auto& found = const_cast<at::MPSHooksInterface&>(at::detail::getMPSHooks());
  TORCH_CHECK(
      typeid(found) == typeid(at::MPSHooksInterface), "This torch has an MPS device of its own; there is nothing to "
      "simulate.");
  new (&found) Hooks();
  start_autograd_thread();
}

} // namespace simulator
