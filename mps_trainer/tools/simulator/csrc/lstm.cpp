// An LSTM is one operator on hardware, forward and backward. Here it is the LSTM of the CPU, which keeps other things
// for its backward pass than hardware's; so backward runs it once more, with a graph.
#include "host.h"
#include "random.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_lstm_mps.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <optional>
#include <vector>

namespace simulator {
namespace {

using at::Tensor;
using at::TensorList;
using std::optional;

using Result = std::tuple<Tensor, Tensor, Tensor>;

uint64_t hash_all(const Tensor& input, TensorList hx, TensorList params) {
  uint64_t hash = hash_shape(EMPTY_HASH, input);
  for (const auto& list : {hx, params}) {
    for (const auto& tensor : list) {
      hash = hash_shape(hash, tensor);
    }
  }
  return hash;
}

// The last three results are what hardware keeps for its backward pass. The first of them holds the state that the
// random numbers were drawn from, so that backward drops the same values.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> lstm_forward(
    const Tensor& input, TensorList hx, TensorList params, bool has_biases, int64_t layers, double dropout, bool train,
    bool bidirectional, bool batch_first) {
  static auto& calls = operator_count("aten::_lstm_mps");
  TORCH_CHECK(
      hx[0].size(2) == hx[1].size(2), "LSTM with projections is not currently supported with MPS. Leave out proj_size, "
      "or use a linear layer after the LSTM.");
  calls.add(hash_all(input, hx, params));
  Aliases aliases;
  const auto to_host = [&aliases](TensorList tensors) {
    std::vector<Tensor> host;
    for (const auto& tensor : tensors) {
      TORCH_CHECK(
          tensor.device().is_mps(), "Input and parameter tensors are not at the same device, found input tensor at "
          "mps:0 and parameter tensor at ", tensor.device(), ". Move all of them with .to(\"mps\").");
      host.push_back(aliases.to_host(tensor));
    }
    return host;
  };
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto drawn_from = aliases.to_device(Tensor(host_generator(default_generator()).get_state()));
  LendGenerator lend(train && dropout > 0);
  const auto [output, hy, cy] = at::lstm(
      aliases.to_host(input), to_host(hx), to_host(params), has_biases, layers, dropout, train, bidirectional,
      batch_first);
  const auto nothing = at::empty({0}, input.options());
  return {aliases.to_device(output), aliases.to_device(hy), aliases.to_device(cy), drawn_from, nothing, nothing};
}

// Leaves of a graph of the CPU, with the values of tensors of the device.
std::vector<Tensor> leaves(TensorList tensors) {
  std::vector<Tensor> copies;
  for (const auto& tensor : tensors) {
    copies.push_back(at::empty_like(host_alias(tensor)).copy_(host_alias(tensor)).requires_grad_());
  }
  return copies;
}

std::tuple<Tensor, std::vector<Tensor>, std::vector<Tensor>> lstm_backward(
    const optional<Tensor>& for_output, const optional<Tensor>& for_hy, const optional<Tensor>& for_cy,
    const Tensor& drawn_from, const Tensor& /*cell_state*/, const Tensor& input, const Tensor& /*layers_outputs*/,
    TensorList hx, TensorList params, bool has_biases, int64_t layers, double dropout, bool train, bool bidirectional,
    bool batch_first) {
  static auto& calls = operator_count("aten::lstm_mps_backward");
  calls.add(hash_all(input, hx, params));
  // This is called below autograd, and its own graph needs autograd.
  c10::impl::ForceDispatchKeyGuard with_autograd(c10::default_included_set, c10::default_excluded_set);
  at::AutoGradMode with_graph(true);
  auto graph_inputs = leaves({input});
  const auto host_hx = leaves(hx);
  const auto host_params = leaves(params);
  auto generator = at::detail::getDefaultCPUGenerator();
  const auto state_now = Tensor(generator.get_state());
  const bool draws = train && dropout > 0;
  if (draws) {
    generator.set_state(at::empty_like(host_alias(drawn_from)).copy_(host_alias(drawn_from)));
  }
  const auto [output, hy, cy] =
      at::lstm(graph_inputs[0], host_hx, host_params, has_biases, layers, dropout, train, bidirectional, batch_first);
  if (draws) {
    generator.set_state(state_now);
  }
  std::vector<Tensor> results, gradients;
  const auto add = [&](const Tensor& result, const optional<Tensor>& gradient) {
    if (gradient && gradient->defined()) {
      results.push_back(result);
      gradients.push_back(at::empty_like(result).copy_(host_alias(*gradient)));
    }
  };
  add(output, for_output);
  add(hy, for_hy);
  add(cy, for_cy);
  graph_inputs.insert(graph_inputs.end(), host_hx.begin(), host_hx.end());
  graph_inputs.insert(graph_inputs.end(), host_params.begin(), host_params.end());
  const auto found = torch::autograd::grad(
      results, graph_inputs, gradients, /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
  Aliases aliases;
  std::vector<Tensor> on_device;
  for (size_t i = 0; i < found.size(); ++i) {
    on_device.push_back(aliases.to_device(found[i].defined() ? found[i] : at::zeros_like(graph_inputs[i])));
  }
  const auto params_begin = on_device.begin() + 1 + static_cast<int64_t>(hx.size());
  return {on_device[0], {on_device.begin() + 1, params_begin}, {params_begin, on_device.end()}};
}

// What a build for a Mac chooses, which other builds do not know of.
Result lstm(const Tensor& input, TensorList hx, TensorList params, bool has_biases, int64_t layers, double dropout,
            bool train, bool bidirectional, bool batch_first) {
  TORCH_CHECK(hx.size() == 2, "lstm expects two hidden states");
  auto result =
      at::_lstm_mps(input, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first);
  return {std::get<0>(result), std::get<1>(result), std::get<2>(result)};
}

TORCH_LIBRARY_IMPL(aten, MPS, m) {
  m.impl("_lstm_mps", TORCH_FN(lstm_forward));
  m.impl("lstm_mps_backward", TORCH_FN(lstm_backward));
  m.impl("lstm.input", TORCH_FN(lstm));
}

TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) {
  m.impl("lstm.input", TORCH_FN(lstm));
}

} // namespace
} // namespace simulator
