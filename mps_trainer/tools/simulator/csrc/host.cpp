#include "host.h"
#include "random.h"

#include <ATen/ops/_efficientzerotensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>

namespace simulator {

void refuse_dtype(c10::ScalarType dtype) {
  TORCH_CHECK_TYPE(
      dtype != c10::ScalarType::Double,
      "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
      "Please use float32 instead.");
  TORCH_CHECK_TYPE(
      dtype != c10::ScalarType::ComplexDouble,
      "Trying to convert ComplexDouble to the MPS backend but it does not have support for that dtype. "
      "Please use complex64 instead.");
}

uint64_t hash_shape(uint64_t hash, const at::Tensor& tensor) {
  const auto mix = [&hash](uint64_t value) { hash = (hash ^ value) * 1099511628211ULL; };
  if (!tensor.defined()) {
    mix(977);
    return hash;
  }
  mix(static_cast<uint64_t>(tensor.scalar_type()) + 101);
  for (const auto size : tensor.sizes()) {
    mix(static_cast<uint64_t>(size) + 1009);
  }
  return hash;
}

// The same elements as `tensor`, as a tensor of another device over `storage`.
static at::Tensor share(const at::Tensor& tensor, at::Tensor shared) {
  const auto* from = tensor.unsafeGetTensorImpl();
  auto* to = shared.unsafeGetTensorImpl();
  to->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
  to->_set_conj(tensor.is_conj());
  to->_set_neg(tensor.is_neg());
  if (from->is_wrapped_number()) {
    to->set_wrapped_number(true);
  }
  return shared;
}

// Kernels below autograd see this; the VIEW constructor leaves the autograd keys out.
static at::Tensor share_with_host(const at::Tensor& tensor, c10::Storage storage) {
  return share(
      tensor,
      at::detail::make_tensor<c10::TensorImpl>(
          c10::TensorImpl::VIEW, std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype()));
}

static at::Tensor share_with_device(const at::Tensor& tensor, c10::Storage storage) {
  return share(
      tensor,
      at::detail::make_tensor<c10::TensorImpl>(
          std::move(storage), c10::DispatchKeySet(c10::DispatchKey::MPS), tensor.dtype()));
}

// The CPU's view of a storage: it owns nothing, and grows into memory of its own if a kernel resizes it.
static c10::Storage borrow(const c10::Storage& storage) {
  auto* data = storage.unsafeGetStorageImpl()->mutable_data();
  return c10::Storage(
      c10::Storage::use_byte_size_t(), storage.nbytes(), c10::DataPtr(data, c10::Device(c10::DeviceType::CPU)),
      c10::GetCPUAllocator(), /*resizable=*/true);
}

struct Adopted {
  c10::Storage host;
  size_t bytes;
  Buffer* buffer;
};

static void free_adopted(void* context) {
  auto* adopted = static_cast<Adopted*>(context);
  discharge(adopted->bytes, adopted->buffer);
  delete adopted;
}

// Memory that a CPU kernel allocated becomes memory of the device.
static c10::DataPtr adopt(const c10::Storage& host) {
  auto* const buffer = charge(host.nbytes());
  return {const_cast<void*>(host.data()), new Adopted{host, host.nbytes(), buffer}, &free_adopted, device()};
}

at::Tensor host_alias(const at::Tensor& tensor) {
  return share_with_host(tensor, borrow(tensor.storage()));
}

// A gradient that is known to be zero has no memory, but a dispatch key that kernels ask about.
static at::Tensor zero_tensor(const at::Tensor& like, c10::Device where) {
  return at::_efficientzerotensor(like.sizes(), like.options().device(where));
}

c10::Storage Aliases::host_storage(const c10::Storage& device) {
  for (const auto& storages : storages_) {
    if (storages.device.is_alias_of(device)) {
      return storages.host;
    }
  }
  storages_.push_back({device, borrow(device)});
  return storages_.back().host;
}

c10::Storage Aliases::device_storage(const c10::Storage& host) {
  for (const auto& storages : storages_) {
    if (storages.host.is_alias_of(host)) {
      return storages.device;
    }
  }
  c10::Storage device(c10::Storage::use_byte_size_t(), host.nbytes(), adopt(host), allocator(), /*resizable=*/true);
  storages_.push_back({device, host});
  return device;
}

at::Tensor Aliases::to_host(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_mps()) {
    return tensor;
  }
  for (const auto& pair : pairs_) {
    if (pair.device.is_same(tensor)) {
      return pair.host;
    }
  }
  pairs_.push_back(
      {tensor, C10_UNLIKELY(tensor._is_zerotensor()) ? zero_tensor(tensor, c10::kCPU)
                                                     : share_with_host(tensor, host_storage(tensor.storage()))});
  return pairs_.back().host;
}

at::Tensor Aliases::to_device(const at::Tensor& host) {
  if (!host.defined()) {
    return host;
  }
  for (const auto& pair : pairs_) {
    if (pair.host.is_same(host)) {
      return pair.device;
    }
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      host.layout() == c10::Layout::Strided && !host.is_quantized(),
      "The simulated mps device holds dense tensors only, and this operator makes one of layout ", host.layout(), ".");
  refuse_dtype(host.scalar_type());
  if (host._is_zerotensor()) {
    return zero_tensor(host, device());
  }
  return share_with_device(host, device_storage(host.storage()));
}

void Aliases::carry_over() {
  for (auto& storages : storages_) {
    auto* device = storages.device.unsafeGetStorageImpl();
    if (device->data() != storages.host.data()) {
      device->set_data_ptr_noswap(adopt(storages.host));
      device->set_nbytes(storages.host.nbytes());
    }
  }
  for (auto& pair : pairs_) {
    auto* to = pair.device.unsafeGetTensorImpl();
    const auto* from = pair.host.unsafeGetTensorImpl();
    if (to->sizes() != from->sizes() || to->strides() != from->strides()) {
      to->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
    }
  }
}

template <typename List, typename Convert>
static List convert_list(const List& list, const Convert& convert) {
  List converted;
  converted.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    converted.push_back(convert(list.get(i)));
  }
  return converted;
}

c10::IValue Aliases::to_host(const c10::IValue& value) {
  if (value.isTensor()) {
    return to_host(value.toTensor());
  }
  if (value.isTensorList()) {
    return convert_list(value.toTensorList(), [this](const at::Tensor& tensor) { return to_host(tensor); });
  }
  if (value.isOptionalTensorList()) {
    return convert_list(value.toOptionalTensorList(), [this](const std::optional<at::Tensor>& tensor) {
      return tensor ? std::optional<at::Tensor>(to_host(*tensor)) : tensor;
    });
  }
  if (value.isGenerator()) {
    return host_generator(value.toGenerator());
  }
  if (value.isDevice() && value.toDevice().is_mps()) {
    return c10::Device(c10::DeviceType::CPU);
  }
  return value;
}

c10::IValue Aliases::to_device(const c10::IValue& value) {
  if (value.isTensor()) {
    return to_device(value.toTensor());
  }
  if (value.isTensorList()) {
    return convert_list(value.toTensorList(), [this](const at::Tensor& tensor) { return to_device(tensor); });
  }
  return value;
}

} // namespace simulator
