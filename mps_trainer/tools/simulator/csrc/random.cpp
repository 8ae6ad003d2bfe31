// The random numbers of the device. They come from an engine of the CPU, because it is CPU kernels that draw them;
// they are not those of hardware.
#include "random.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

namespace simulator {

struct DeviceGenerator final : public c10::GeneratorImpl {
  explicit DeviceGenerator(at::Generator own)
      : c10::GeneratorImpl(simulator::device(), c10::DispatchKeySet(c10::DispatchKey::MPS)), own_(std::move(own)) {}

  at::Generator host() const {
    const bool is_default = this == default_generator().unsafeGetGeneratorImpl();
    return is_default && state().shared_generator ? at::detail::getDefaultCPUGenerator() : own_;
  }
  void set_current_seed(uint64_t seed) override {
    host().set_current_seed(seed);
  }
  uint64_t current_seed() const override {
    return host().current_seed();
  }
  uint64_t seed() override {
    return host().seed();
  }
  void set_offset(uint64_t) override {
    TORCH_CHECK(false, "The generator of the simulated mps device has no offset.");
  }
  uint64_t get_offset() const override {
    TORCH_CHECK(false, "The generator of the simulated mps device has no offset.");
  }
  void set_state(const c10::TensorImpl& new_state) override {
    host().unsafeGetGeneratorImpl()->set_state(new_state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host().unsafeGetGeneratorImpl()->get_state();
  }

 private:
  DeviceGenerator* clone_impl() const override {
    return new DeviceGenerator(own_.clone());
  }
  at::Generator own_;
};

const at::Generator& default_generator() {
  static auto* const instance = new at::Generator(
      at::make_generator<DeviceGenerator>(at::detail::createCPUGenerator(c10::detail::getNonDeterministicRandom())));
  return *instance;
}

at::Generator new_generator() {
  return at::make_generator<DeviceGenerator>(at::detail::createCPUGenerator());
}

at::Generator host_generator(const at::Generator& generator) {
  TORCH_CHECK(
      generator.device().is_mps(), "Expected a 'mps' device type for generator but found '",
      generator.device().type(), "'. Make it with torch.Generator(device=\"mps\").");
  return static_cast<const DeviceGenerator*>(generator.unsafeGetGeneratorImpl())->host();
}

LendGenerator::LendGenerator(bool needed) : needed_(needed && !state().shared_generator) {
  if (needed_) {
    swap();
  }
}

LendGenerator::~LendGenerator() {
  if (needed_) {
    swap();
  }
}

void LendGenerator::swap() {
  auto* host =
      at::get_generator_or_default<at::CPUGeneratorImpl>(std::nullopt, at::detail::getDefaultCPUGenerator());
  const auto lent = host_generator(default_generator());
  auto* ours = at::check_generator<at::CPUGeneratorImpl>(lent);
  std::scoped_lock lock(host->mutex_, ours->mutex_);
  const auto engine = host->engine();
  const auto next_float = host->next_float_normal_sample();
  const auto next_double = host->next_double_normal_sample();
  host->set_engine(ours->engine());
  host->set_next_float_normal_sample(ours->next_float_normal_sample());
  host->set_next_double_normal_sample(ours->next_double_normal_sample());
  ours->set_engine(engine);
  ours->set_next_float_normal_sample(next_float);
  ours->set_next_double_normal_sample(next_double);
}

} // namespace simulator
