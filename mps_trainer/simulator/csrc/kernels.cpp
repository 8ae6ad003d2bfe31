// Kernels that a CPU kernel cannot stand in for: memory, copies, and what only MPS has.
#include "host.h"
#include "redirect.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cstring>
#include <limits>
#include <optional>
#include <set>

namespace simulator {
namespace {

using at::Tensor;
using c10::IntArrayRef;
using std::optional;

template <typename... Tensors>
void count(const char* name, const Tensors&... tensors) {
  uint64_t hash = EMPTY_HASH;
  ((hash = hash_shape(hash, tensors)), ...);
  count_operator(name, hash);
}

// Memory ----------------------------------------------------------------------------------------------------------

void check_request(optional<c10::ScalarType> dtype, optional<c10::Layout> layout, optional<c10::Device> where,
                   optional<bool> pinned) {
  TORCH_CHECK(
      state().active, "The simulated mps device is switched off: tensors can be made on it inside simulated_mps() "
      "only.");
  TORCH_CHECK(
      !where || where->index() <= 0, "There is one mps device in a Mac, mps:0, and ", *where, " was asked for.");
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned, and with mps there is no pinned memory.");
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
  const bool to_device = self.device().is_mps();
  const bool from_device = source.device().is_mps();
  if (to_device && from_device) {
    count("aten::copy_", self, source);
  } else {
    count_copy(to_device, source.nbytes());
    if (from_device && !non_blocking) {
      count_read("copy to the host");
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

// What only MPS has: made of what the CPU runs for the same thing, so that the numbers are the CPU's -----------------

// As the derivatives of addmm and matmul, which is what linear is on the CPU.
std::tuple<Tensor, Tensor, Tensor> linear_backward(const Tensor& input, const Tensor& gradient, const Tensor& weight,
                                                   std::array<bool, 3> wanted) {
  count("aten::linear_backward", input, gradient, weight);
  Aliases aliases;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto rows = aliases.to_host(gradient).reshape({-1, gradient.size(-1)});
  Tensor for_input, for_weight, for_bias;
  if (wanted[0]) {
    for_input = rows.mm(aliases.to_host(weight)).view(input.sizes());
  }
  if (wanted[1]) {
    for_weight = rows.t().mm(aliases.to_host(input).reshape({-1, input.size(-1)}));
  }
  if (wanted[2]) {
    for_bias = rows.sum(0);
  }
  return {aliases.to_device(for_input), aliases.to_device(for_weight), aliases.to_device(for_bias)};
}

Tensor max_pool2d_backward(const Tensor& gradient, const Tensor& self, IntArrayRef kernel, IntArrayRef stride,
                           IntArrayRef padding, IntArrayRef dilation, bool ceil_mode) {
  count("aten::max_pool2d_backward", gradient, self);
  Aliases aliases;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto input = aliases.to_host(self);
  const auto indices =
      std::get<1>(at::max_pool2d_with_indices(input, kernel, stride, padding, dilation, ceil_mode));
  return aliases.to_device(at::max_pool2d_with_indices_backward(
      aliases.to_host(gradient), input, kernel, stride, padding, dilation, ceil_mode, indices));
}

// In a build without MPS, torch sends convolutions of this device to the operators that are there to be overridden.
Tensor convolution(const Tensor& input, const Tensor& weight, const optional<Tensor>& bias, IntArrayRef stride,
                   IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                   int64_t groups) {
  count(transposed ? "aten::_mps_convolution_transpose" : "aten::_mps_convolution", input, weight);
  Aliases aliases;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto host_bias = bias ? optional<Tensor>(aliases.to_host(*bias)) : bias;
  return aliases.to_device(at::convolution(
      aliases.to_host(input), aliases.to_host(weight), host_bias, stride, padding, dilation, transposed,
      output_padding, groups));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, IntArrayRef stride, IntArrayRef padding,
    IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups, std::array<bool, 3> wanted) {
  count(
      transposed ? "aten::mps_convolution_transpose_backward" : "aten::mps_convolution_backward", gradient, input,
      weight);
  Aliases aliases;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  auto [for_input, for_weight, for_bias] = at::convolution_backward(
      aliases.to_host(gradient), aliases.to_host(input), aliases.to_host(weight), IntArrayRef{channels}, stride,
      padding, dilation, transposed, output_padding, groups, wanted);
  return {aliases.to_device(for_input), aliases.to_device(for_weight), aliases.to_device(for_bias)};
}

// What torch makes of a mask that says where to look, before any attention kernel sees it.
optional<Tensor> additive_mask(const optional<Tensor>& mask, const Tensor& query) {
  if (!mask || !mask->defined() || mask->scalar_type() != c10::kBool) {
    return mask;
  }
  return at::zeros(mask->sizes(), query.options())
      .masked_fill_(mask->logical_not(), -std::numeric_limits<double>::infinity());
}

// torch asks which attention kernel a device has, and knows of none for mps in a build without MPS. On hardware it is
// one kernel where nothing has to be kept for a backward pass, and a product, a softmax and a product elsewhere.
Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value, const optional<Tensor>& mask,
                 double dropout, bool is_causal, optional<double> scale, bool enable_gqa) {
  const auto added = additive_mask(mask, query);
  const bool keeps_graph =
      at::GradMode::is_enabled() && (query.requires_grad() || key.requires_grad() || value.requires_grad());
  const bool one_kernel = !keeps_graph && dropout == 0 && query.is_contiguous() && key.is_contiguous() &&
      value.is_contiguous() && query.device().is_mps() && key.device().is_mps() && value.device().is_mps();
  if (!one_kernel) {
    return std::get<0>(at::_scaled_dot_product_attention_math(
        query, key, value, added, dropout, is_causal, std::nullopt, scale, enable_gqa));
  }
  count("aten::_scaled_dot_product_attention_math_for_mps", query, key, value);
  Aliases aliases;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto host_mask = added ? optional<Tensor>(aliases.to_host(*added)) : added;
  return aliases.to_device(std::get<0>(at::_scaled_dot_product_attention_math(
      aliases.to_host(query), aliases.to_host(key), aliases.to_host(value), host_mask, dropout, is_causal,
      std::nullopt, scale, enable_gqa)));
}

const std::set<std::string>& own_kernels() {
  static const std::set<std::string> names = {
      "aten::empty.memory_format", "aten::empty_strided", "aten::resize_", "aten::set_.source_Storage",
      "aten::set_.source_Storage_storage_offset", "aten::set_.source_Tensor", "aten::set_", "aten::copy_",
      "aten::_copy_from", "aten::_copy_from_and_resize", "aten::_local_scalar_dense", "aten::view",
      "aten::_reshape_alias", "aten::as_strided", "aten::unfold", "aten::linear_backward",
      "aten::max_pool2d_backward", "aten::convolution_overrideable", "aten::convolution_backward_overrideable",
      "aten::scaled_dot_product_attention"};
  return names;
}

TORCH_LIBRARY_IMPL(aten, MPS, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
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
  m.impl("linear_backward", TORCH_FN(linear_backward));
  m.impl("max_pool2d_backward", TORCH_FN(max_pool2d_backward));
  m.impl("convolution_overrideable", TORCH_FN(convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
  m.impl("scaled_dot_product_attention", TORCH_FN(attention));
}

// Attention is made of other operators with autograd's formulas, so it has to be chosen above autograd.
TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) {
  m.impl("scaled_dot_product_attention", TORCH_FN(attention));
}

TORCH_LIBRARY_IMPL(_, MPS, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&without_kernel>());
}

} // namespace

void register_kernels(const std::vector<std::string>& native, const std::vector<std::string>& always_fall_back) {
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::MPS, __FILE__, __LINE__);
  const auto register_all = [](const std::vector<std::string>& names, const auto& kernel) {
    for (const auto& full : names) {
      const auto dot = full.find('.');
      const auto handle = c10::Dispatcher::singleton().findSchema(
          {full.substr(0, dot), dot == std::string::npos ? "" : full.substr(dot + 1)});
      if (handle && own_kernels().count(full) == 0) {
        library->impl(full.substr(std::strlen("aten::")).c_str(), kernel(*handle));
      }
    }
  };
  register_all(native, native_kernel);
  register_all(always_fall_back, fallback_kernel);
}

} // namespace simulator
