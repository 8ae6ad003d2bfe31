#pragma once

#include "state.h"

#include <ATen/CPUGeneratorImpl.h>

namespace simulator {

const at::Generator& default_generator();
at::Generator new_generator();
// What a CPU kernel draws from in place of a generator of the device.
at::Generator host_generator(const at::Generator& generator);

// Kernels of the CPU that take no generator draw from the CPU's default one; this lends it the state of the device's.
class LendGenerator {
 public:
  explicit LendGenerator(bool needed);
  ~LendGenerator();
  LendGenerator(const LendGenerator&) = delete;
  LendGenerator& operator=(const LendGenerator&) = delete;

 private:
  static void swap();
  bool needed_;
};

} // namespace simulator
