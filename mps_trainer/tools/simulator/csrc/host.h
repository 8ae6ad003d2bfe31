// A call of a CPU kernel with tensors of the device: they share memory, so that nothing is copied.
#pragma once

#include "state.h"

#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

namespace simulator {

// The tensors of one call, as the CPU kernel sees them. A tensor given twice is seen as one, and views of one storage
// as views of one storage, because kernels look for overlap.
class Aliases {
 public:
  at::Tensor to_host(const at::Tensor& tensor);
  at::Tensor to_device(const at::Tensor& host);
  c10::IValue to_host(const c10::IValue& value);
  c10::IValue to_device(const c10::IValue& value);
  // Carries over what the kernel did to the shape and the storage of its arguments (out= and resizes).
  void carry_over();

 private:
  struct Pair {
    at::Tensor device, host;
  };
  struct Storages {
    c10::Storage device, host;
  };
  c10::Storage host_storage(const c10::Storage& device);
  c10::Storage device_storage(const c10::Storage& host);
  c10::SmallVector<Pair, 8> pairs_;
  c10::SmallVector<Storages, 8> storages_;
};

} // namespace simulator
