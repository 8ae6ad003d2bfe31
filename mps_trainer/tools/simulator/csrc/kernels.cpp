// Kernels that a CPU kernel cannot stand in for: memory and copies; and the registration of all that it can.
#include "host.h"
#include "redirect.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <cstring>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace simulator {
namespace {

using at::Tensor;
using c10::IntArrayRef;
using std::optional;

// Memory ----------------------------------------------------------------------------------------------------------

void check_request(optional<c10::ScalarType> dtype, optional<c10::Layout> layout, optional<c10::Device> where,
                   optional<bool> pinned) {
  TORCH_CHECK(
      state().active, "The simulated mps device is switched off: tensors can be made on it inside simulated_mps() "
      "only.");
  TORCH_CHECK(
      !where || where->index() <= 0, "There is one mps device in a Mac, mps:0, and ", *where, " was asked for.");
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned.");
  TORCH_CHECK_NOT_IMPLEMENTED(
      c10::layout_or_default(layout) == c10::Layout::Strided, "only strided tensors are supported on MPS");
  refuse_dtype(c10::dtype_or_default(dtype));
}

Tensor empty(IntArrayRef size, optional<c10::ScalarType> dtype, optional<c10::Layout> layout,
             optional<c10::Device> where, optional<bool> pinned, optional<c10::MemoryFormat> format) {
  check_request(dtype, layout, where, pinned);
  return at::detail::empty_generic(
      size, allocator(), c10::DispatchKeySet(c10::DispatchKey::MPS), c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, optional<c10::ScalarType> dtype,
                     optional<c10::Layout> layout, optional<c10::Device> where, optional<bool> pinned) {
  check_request(dtype, layout, where, pinned);
  return at::detail::empty_strided_generic(
      size, stride, allocator(), c10::DispatchKeySet(c10::DispatchKey::MPS), c10::dtype_or_default(dtype));
}

// Zeros without memory, which autograd makes where it knows a gradient to be zero: a storage of nothing and a key.
Tensor zeros_without_memory(IntArrayRef size, optional<c10::ScalarType> dtype, optional<c10::Layout> layout,
                            optional<c10::Device> where, optional<bool> pinned) {
  check_request(dtype, layout, where, pinned);
  static auto* const no_memory = new at::native::ZeroTensorAllocator(device());
  return at::detail::empty_generic(
      size, no_memory, c10::DispatchKeySet(c10::DispatchKey::MPS) | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor),
      c10::dtype_or_default(dtype), std::nullopt);
}

// Makes the storage at least this large, keeping what it holds.
void grow(c10::StorageImpl* storage, size_t bytes) {
  if (storage->nbytes() >= bytes) {
    return;
  }
  auto larger = allocator()->allocate(bytes);
  if (storage->nbytes() > 0) {
    std::memcpy(larger.get(), storage->data(), storage->nbytes());
  }
  storage->set_data_ptr_noswap(std::move(larger));
  storage->set_nbytes(bytes);
}

const Tensor& resize_(const Tensor& self, IntArrayRef size, optional<c10::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  if (format && *format != c10::MemoryFormat::Preserve) {
    impl->empty_tensor_restride(*format);
  }
  grow(
      self.storage().unsafeGetStorageImpl(),
      (static_cast<size_t>(impl->numel()) + static_cast<size_t>(impl->storage_offset())) * impl->itemsize());
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  TORCH_CHECK(
      source.device().is_mps(), "Attempted to set the storage of a tensor on device \"mps:0\" to a storage on "
      "different device \"", source.device(), "\". The devices must match.");
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (stride.data() == nullptr || (stride.empty() && !size.empty())) {
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride);
  }
  const auto bytes = at::detail::computeStorageNbytes(
      self.sizes(), self.strides(), self.itemsize(), static_cast<size_t>(offset));
  grow(self.storage().unsafeGetStorageImpl(), bytes);
  return self;
}

Tensor& set_whole_storage(Tensor& self, at::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {count}, {});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  if (self.unsafeGetTensorImpl() != source.unsafeGetTensorImpl()) {
    set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
  }
  return self;
}

Tensor& set_nothing(Tensor& self) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, allocator(), /*resizable=*/true);
  return set_storage(self, std::move(storage), 0, {0}, {});
}

// Copies ----------------------------------------------------------------------------------------------------------

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  static auto& copies = operator_count("aten::copy_");
  if (source._is_zerotensor()) { // a gradient that is known to be zero and has no memory
    return self.zero_();
  }
  const bool to_device = self.device().is_mps();
  const bool from_device = source.device().is_mps();
  if (to_device && from_device) {
    copies.add(hash_shapes(self, source));
  } else {
    count_copy(to_device, source.nbytes());
    if (!non_blocking && source.numel() > 0) {
      count_read(to_device ? "copy to the device" : "copy to the host");
    }
  }
  Aliases aliases;
  auto host = aliases.to_host(self);
  const auto host_source = aliases.to_host(source);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  host.copy_(host_source);
  return self;
}

Tensor copy_from(const Tensor& self, const Tensor& to, bool non_blocking) {
  auto target = to;
  return copy_(target, self, non_blocking);
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  auto target = to;
  target.resize_(self.sizes());
  return copy_(target, self, /*non_blocking=*/false);
}

at::Scalar local_scalar_dense(const Tensor& self) {
  count_read("aten::_local_scalar_dense");
  count_copy(/*to_device=*/false, self.nbytes());
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return at::_local_scalar_dense(host_alias(self));
}

TORCH_LIBRARY_IMPL(aten, MPS, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_efficientzerotensor", TORCH_FN(zeros_without_memory));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("set_", TORCH_FN(set_nothing));
  m.impl("copy_", TORCH_FN(copy_));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("unfold", TORCH_FN(at::native::unfold));
}

TORCH_LIBRARY_IMPL(_, MPS, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&without_kernel>());
}

} // namespace

// These pick their code by the kind of device from a table, which has no column for mps in a build without MPS.
static const std::vector<std::string> PICKED_BY_DEVICE = {"aten::conj_physical_"};

void register_kernels(
    const std::vector<std::string>& native, const std::vector<std::string>& always_fall_back,
    const std::vector<std::tuple<std::string, std::string, bool>>& reads) {
  std::unordered_map<std::string, std::pair<std::string, bool>> read;
  for (const auto& [name, argument, numbers_only] : reads) {
    read[name] = {argument, numbers_only};
  }
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::MPS, __FILE__, __LINE__);
  const auto register_all = [](const std::vector<std::string>& names, const auto& kernel) {
    for (const auto& full : names) {
      const auto dot = full.find('.');
      const auto handle = c10::Dispatcher::singleton().findSchema(
          {full.substr(0, dot), dot == std::string::npos ? "" : full.substr(dot + 1)});
      if (handle && !handle->hasKernelForDispatchKey(c10::DispatchKey::MPS)) { // else it has one of its own above
        library->impl(full.substr(std::strlen("aten::")).c_str(), kernel(full, *handle));
      }
    }
  };
  const auto make_native = [&read](const std::string& name, const c10::OperatorHandle& handle) {
    const auto& [argument, numbers_only] = read[name];
    return native_kernel(handle, argument, numbers_only);
  };
  register_all(native, make_native);
  register_all(PICKED_BY_DEVICE, make_native);
  register_all(always_fall_back, [](const std::string&, const auto& handle) { return fallback_kernel(handle); });
}

} // namespace simulator
