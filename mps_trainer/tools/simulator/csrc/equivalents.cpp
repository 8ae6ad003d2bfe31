// Operators that only MPS has, and what a build for a Mac chooses for it: made of what the CPU runs for the same thing,
// so that the numbers are the CPU's, and counted as hardware runs them.
#include "host.h"
#include "pool.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_attention_math_for_mps.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>

namespace simulator {
namespace {

using at::Tensor;
using c10::IntArrayRef;
using std::optional;

bool keeps_graph(std::initializer_list<Tensor> tensors) {
  return at::GradMode::is_enabled() &&
      std::any_of(tensors.begin(), tensors.end(), [](const Tensor& tensor) { return tensor.requires_grad(); });
}

// As the derivatives of addmm and matmul, which is what linear is on the CPU.
std::tuple<Tensor, Tensor, Tensor> linear_backward(const Tensor& input, const Tensor& gradient, const Tensor& weight,
                                                   std::array<bool, 3> wanted) {
  static auto& calls = operator_count("aten::linear_backward");
  calls.add(hash_shapes(input, gradient, weight));
  Aliases aliases;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto rows = aliases.to_host(gradient).reshape({-1, gradient.size(-1)});
  Tensor for_input, for_weight, for_bias;
  if (wanted[0]) {
    for_input = rows.mm(aliases.to_host(weight).conj()).view(input.sizes());
  }
  if (wanted[1]) {
    for_weight = rows.t().mm(aliases.to_host(input).reshape({-1, input.size(-1)}).conj());
  }
  if (wanted[2]) {
    for_bias = rows.sum(0);
  }
  return {aliases.to_device(for_input), aliases.to_device(for_weight), aliases.to_device(for_bias)};
}

Tensor max_pool2d_backward(const Tensor& gradient, const Tensor& self, IntArrayRef kernel, IntArrayRef stride,
                           IntArrayRef padding, IntArrayRef dilation, bool ceil_mode) {
  static auto& calls = operator_count("aten::max_pool2d_backward");
  calls.add(hash_shapes(gradient, self));
  Aliases aliases;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto input = aliases.to_host(self);
  const auto indices =
      std::get<1>(at::max_pool2d_with_indices(input, kernel, stride, padding, dilation, ceil_mode));
  return aliases.to_device(at::max_pool2d_with_indices_backward(
      aliases.to_host(gradient), input, kernel, stride, padding, dilation, ceil_mode, indices));
}

// Convolutions ----------------------------------------------------------------------------------------------------

// In a build without MPS, torch sends convolutions of this device to the operators that are there to be overridden.
Tensor any_convolution(const Tensor& input, const Tensor& weight, const optional<Tensor>& bias, IntArrayRef stride,
                       IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                       int64_t groups) {
  static auto& plain_calls = operator_count("aten::_mps_convolution");
  static auto& transposed_calls = operator_count("aten::_mps_convolution_transpose");
  const auto check = [&input](const char* name, const Tensor& parameter) {
    TORCH_CHECK(
        parameter.options().type_equal(input.options()), "Input type (", input.toString(), ") and ", name, " type (",
        parameter.toString(), ") should be the same. Move one to the device and dtype of the other.");
  };
  check("weight", weight);
  if (bias && bias->defined()) {
    check("bias", *bias);
  }
  (transposed ? transposed_calls : plain_calls).add(hash_shapes(input, weight));
  Aliases aliases;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto host_bias = bias ? optional<Tensor>(aliases.to_host(*bias)) : bias;
  return aliases.to_device(at::convolution(
      aliases.to_host(input), aliases.to_host(weight), host_bias, stride, padding, dilation, transposed,
      output_padding, groups));
}

std::tuple<Tensor, Tensor, Tensor> any_convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, IntArrayRef stride, IntArrayRef padding,
    IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups, std::array<bool, 3> wanted) {
  static auto& plain_calls = operator_count("aten::mps_convolution_backward");
  static auto& transposed_calls = operator_count("aten::mps_convolution_transpose_backward");
  (transposed ? transposed_calls : plain_calls).add(hash_shapes(gradient, input, weight));
  Aliases aliases;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  auto [for_input, for_weight, for_bias] = at::convolution_backward(
      aliases.to_host(gradient), aliases.to_host(input), aliases.to_host(weight), IntArrayRef{channels}, stride,
      padding, dilation, transposed, output_padding, groups, wanted);
  return {aliases.to_device(for_input), aliases.to_device(for_weight), aliases.to_device(for_bias)};
}

const int64_t NO_PADDING = 0;

// Hardware's own operators, which a graph traced on a Mac calls by name. Note their order: padding before stride.
Tensor mps_convolution(const Tensor& input, const Tensor& weight, const optional<Tensor>& bias, IntArrayRef padding,
                       IntArrayRef stride, IntArrayRef dilation, int64_t groups) {
  return any_convolution(input, weight, bias, stride, padding, dilation, /*transposed=*/false, NO_PADDING, groups);
}

std::tuple<Tensor, Tensor, Tensor> mps_convolution_backward(
    const Tensor& input, const Tensor& gradient, const Tensor& weight, IntArrayRef padding, IntArrayRef stride,
    IntArrayRef dilation, int64_t groups, std::array<bool, 3> wanted) {
  return any_convolution_backward(
      gradient, input, weight, stride, padding, dilation, /*transposed=*/false, NO_PADDING, groups, wanted);
}

Tensor mps_convolution_transpose(const Tensor& input, const Tensor& weight, IntArrayRef padding,
                                 IntArrayRef output_padding, IntArrayRef stride, IntArrayRef dilation,
                                 int64_t groups) {
  return any_convolution(
      input, weight, std::nullopt, stride, padding, dilation, /*transposed=*/true, output_padding, groups);
}

std::tuple<Tensor, Tensor> mps_convolution_transpose_backward(
    const Tensor& input, const Tensor& gradient, const Tensor& weight, IntArrayRef padding, IntArrayRef output_padding,
    IntArrayRef stride, IntArrayRef dilation, int64_t groups, std::array<bool, 2> wanted) {
  auto [for_input, for_weight, for_bias] = any_convolution_backward(
      gradient, input, weight, stride, padding, dilation, /*transposed=*/true, output_padding, groups,
      {wanted[0], wanted[1], false});
  return {for_input, for_weight};
}

// Attention and norm ----------------------------------------------------------------------------------------------

// torch's kernel for many queries needs no graph and keeps no weights: it returns the result in their place.
bool is_prefill(const Tensor& query, const Tensor& value) {
  static const std::set<int64_t> head_sizes = {32, 64, 72, 80, 96, 128, 256};
  constexpr int64_t MOST_OF_OTHER_KERNELS = 8;
  const int64_t size = query.size(-1);
  return FROM_TORCH_2_14 && query.size(-2) > MOST_OF_OTHER_KERNELS && size == value.size(-1) &&
      head_sizes.count(size) > 0;
}

std::tuple<Tensor, Tensor> mps_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                         const optional<Tensor>& mask, double dropout, bool is_causal,
                                         const optional<Tensor>& dropout_mask, optional<double> scale,
                                         bool enable_gqa) {
  static auto& calls = operator_count("aten::_scaled_dot_product_attention_math_for_mps");
  const bool without_weights = is_prefill(query, value);
  without_weights ? calls.add_without_graph() : calls.add(hash_shapes(query, key, value));
  Aliases aliases;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto host = [&aliases](const optional<Tensor>& tensor) {
    return tensor ? optional<Tensor>(aliases.to_host(*tensor)) : tensor;
  };
  auto [result, weights] = at::_scaled_dot_product_attention_math(
      aliases.to_host(query), aliases.to_host(key), aliases.to_host(value), host(mask), dropout, is_causal,
      host(dropout_mask), scale, enable_gqa);
  const Tensor on_device = aliases.to_device(result);
  return {on_device, without_weights ? on_device : aliases.to_device(weights)};
}

// True: may be attended to. The kernels want numbers to add: 0 and minus infinity.
optional<Tensor> numeric(const optional<Tensor>& mask, c10::ScalarType dtype) {
  if (!mask || !mask->defined() || mask->scalar_type() != c10::kBool) {
    return mask;
  }
  return at::zeros_like(*mask, mask->options().dtype(dtype))
      .masked_fill_(mask->logical_not(), -std::numeric_limits<double>::infinity());
}

// torch asks which attention kernel a device has, and knows of none for mps in a build without MPS. On hardware it is
// one kernel where nothing has to be kept for a backward pass, and a product, a softmax and a product elsewhere.
Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value, const optional<Tensor>& mask,
                 double dropout, bool is_causal, optional<double> scale, bool enable_gqa) {
  const auto added = numeric(mask, query.scalar_type());
  const bool one_device = query.device().is_mps() && key.device().is_mps() && value.device().is_mps() &&
      (!mask || !mask->defined() || mask->device().is_mps());
  if (one_device && dropout == 0 && !keeps_graph({query, key, value})) {
    return std::get<0>(at::_scaled_dot_product_attention_math_for_mps(
        query, key, value, added, dropout, is_causal, std::nullopt, scale, enable_gqa));
  }
  return std::get<0>(at::_scaled_dot_product_attention_math(
      query, key, value, added, dropout, is_causal, std::nullopt, scale, enable_gqa));
}

// Hardware has a fused kernel without a derivative, so it takes it only where none is needed and there is a weight.
std::tuple<Tensor, Tensor> rms_norm(const Tensor& input, IntArrayRef normalized_shape, const optional<Tensor>& weight,
                                    optional<double> epsilon) {
  if (!weight || !weight->defined() || keeps_graph({input, *weight})) {
    // The CPU has no fused kernel: what it does above autograd is made of other operators, for tensors of any device.
    return at::_ops::_fused_rms_norm::redispatch(
        c10::DispatchKeySet(c10::DispatchKey::AutogradCPU), input, normalized_shape, weight, epsilon);
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return at::_fused_rms_norm(input.contiguous(), normalized_shape, weight, epsilon);
}

// Picked by device ------------------------------------------------------------------------------------------------

// Hardware has no code of its own for it, so torch multiplies by a power of two; here it would look for such code in
// a table that has no column for mps.
Tensor ldexp(const Tensor& self, const Tensor& exponent) {
  return at::mul(self, at::pow(2.0, exponent));
}

Tensor& ldexp_in_place(Tensor& self, const Tensor& exponent) {
  return at::mul_out(self, self, at::pow(2.0, exponent));
}

Tensor& ldexp_out(const Tensor& self, const Tensor& exponent, Tensor& out) {
  return at::mul_out(out, self, at::pow(2.0, exponent));
}

void refuse_window(const c10::OperatorHandle& handle, torch::jit::Stack*) {
  TORCH_CHECK(
      false, "DispatchStub: missing kernel for mps: ", handle.operator_name(), " runs on the CPU only. Make the window "
      "there and move it with .to(\"mps\").");
}

TORCH_LIBRARY_IMPL(aten, MPS, m) {
  m.impl("linear_backward", TORCH_FN(linear_backward));
  m.impl("max_pool2d_backward", TORCH_FN(max_pool2d_backward));
  m.impl("convolution_overrideable", TORCH_FN(any_convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(any_convolution_backward));
  m.impl("_mps_convolution", TORCH_FN(mps_convolution));
  m.impl("mps_convolution_backward", TORCH_FN(mps_convolution_backward));
  m.impl("_mps_convolution_transpose", TORCH_FN(mps_convolution_transpose));
  m.impl("mps_convolution_transpose_backward", TORCH_FN(mps_convolution_transpose_backward));
  m.impl("scaled_dot_product_attention", TORCH_FN(attention));
  m.impl("_scaled_dot_product_attention_math_for_mps", TORCH_FN(mps_attention));
  m.impl("ldexp.Tensor", TORCH_FN(ldexp));
  m.impl("ldexp_", TORCH_FN(ldexp_in_place));
  m.impl("ldexp.out", TORCH_FN(ldexp_out));
  for (const char* name : {"kaiser_window", "kaiser_window.periodic", "kaiser_window.beta"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_window>());
  }
}

// Both are made of other operators with autograd's formulas, so they have to be chosen above autograd.
TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) {
  m.impl("scaled_dot_product_attention", TORCH_FN(attention));
  m.impl("_fused_rms_norm", TORCH_FN(rms_norm));
}

} // namespace
} // namespace simulator
