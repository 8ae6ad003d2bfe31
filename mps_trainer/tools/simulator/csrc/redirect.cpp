// What hardware runs as an MPS kernel, run as the CPU kernel over the same memory; and what becomes of the rest.
#include "host.h"
#include "random.h"
#include "redirect.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include <torch/version.h>

#include <memory>
#include <unordered_map>

namespace simulator {

// What can be read off an operator's schema once.
struct Operator {
  explicit Operator(const c10::OperatorHandle& handle);
  std::string name;
  OperatorCount* count;
  bool native = false; // hardware has a kernel
  bool makes_view = false; // the result looks at the memory of an argument, and no kernel runs
  bool draws = false; // random numbers, from the default generator even where it takes none
  bool size_from_values = false; // the host has to read values to know the size of the result
  size_t read = SIZE_MAX; // the argument that the kernel reads on the host
  bool reads_numbers_only = false; // and only if it has no dimensions
  size_t output_size = SIZE_MAX; // the argument that makes reading for the size of the result unnecessary
  bool indexes = false; // takes indices, which may be on the CPU, or masks, whose values give the size
  size_t generator = SIZE_MAX; // position among the arguments
  size_t written = SIZE_MAX; // the first argument that is written to
};

static bool is_generator(const c10::Argument& argument) {
  const auto optional = argument.type()->cast<c10::OptionalType>();
  const auto type = optional ? optional->getElementType() : argument.type();
  return type->kind() == c10::TypeKind::GeneratorType;
}

Operator::Operator(const c10::OperatorHandle& handle) {
  const auto& schema = handle.schema();
  name = schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
  count = &operator_count(name);
  draws = handle.hasTag(at::Tag::nondeterministic_seeded);
  indexes = schema.name().find("index_put") != std::string::npos || schema.name() == "aten::index" ||
      schema.name() == "aten::_unsafe_index";
  size_from_values = !indexes &&
      (handle.hasTag(at::Tag::dynamic_output_shape) || handle.hasTag(at::Tag::data_dependent_output));
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    if (is_generator(argument)) {
      generator = i;
    }
    if (argument.name() == "output_size") {
      output_size = i;
    }
    if (written == SIZE_MAX && argument.alias_info() != nullptr && argument.alias_info()->isWrite()) {
      written = i;
    }
  }
  for (const auto& result : schema.returns()) {
    makes_view |= result.alias_info() != nullptr && !result.alias_info()->isWrite();
  }
}

// CPU tensors among the arguments of an MPS kernel are an error, unless they are numbers (no dimensions).
static void check_device(const Operator& op, const c10::FunctionSchema& schema, size_t i, const at::Tensor& tensor) {
  const bool is_index = op.indexes && schema.arguments()[i].name() == "indices";
  const bool may_be_number = tensor.defined() && tensor.dim() == 0 && i != op.written;
  if (!tensor.defined() || tensor.device().is_mps() || may_be_number || is_index) {
    return;
  }
  TORCH_CHECK(
      false, "Expected all tensors to be on the same device, but found at least two devices, mps:0 and ",
      tensor.device(), "! Argument '", schema.arguments()[i].name(), "' of ", op.name, " is on ", tensor.device(),
      ", which hardware reports in some operators as: Placeholder storage has not been allocated on MPS device! "
      "Move it with .to(\"mps\").");
}

static uint64_t check_and_hash(const Operator& op, const c10::FunctionSchema& schema, const c10::IValue* arguments) {
  uint64_t hash = EMPTY_HASH;
  const auto look_at = [&](size_t i, const at::Tensor& tensor) {
    if (op.native) {
      check_device(op, schema, i, tensor);
    }
    hash = hash_shape(hash, tensor);
  };
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& value = arguments[i];
    if (value.isTensor()) {
      look_at(i, value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) {
        look_at(i, tensor);
      }
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
        look_at(i, tensor.value_or(at::Tensor()));
      }
    }
  }
  return hash;
}

static bool has_mask(const c10::IValue& indices) {
  if (indices.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& index : indices.toOptionalTensorList()) {
      if (index && index->defined() && (index->scalar_type() == c10::kBool || index->scalar_type() == c10::kByte)) {
        return true;
      }
    }
  }
  return false;
}

static bool reads(const Operator& op, const c10::IValue* arguments) {
  if (op.size_from_values && (op.output_size == SIZE_MAX || arguments[op.output_size].isNone())) {
    return true;
  }
  if (op.read != SIZE_MAX && arguments[op.read].isTensor()) {
    const auto& tensor = arguments[op.read].toTensor();
    return tensor.defined() && tensor.device().is_mps() && (tensor.dim() == 0 || !op.reads_numbers_only);
  }
  return op.indexes && has_mask(arguments[1]);
}

// Replaces the arguments on top of the stack by the results of the CPU kernel.
static void call_host(const c10::OperatorHandle& handle, const Operator& op, torch::jit::Stack* stack) {
  const auto& schema = handle.schema();
  const size_t begin = stack->size() - schema.arguments().size();
  Aliases aliases;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    auto& value = (*stack)[begin + i];
    if (i == op.generator && value.isNone()) {
      value = host_generator(default_generator());
    } else {
      value = aliases.to_host(value);
    }
  }
  {
    LendGenerator lend(op.draws && op.generator == SIZE_MAX);
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  aliases.carry_over();
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    (*stack)[i] = aliases.to_device((*stack)[i]);
  }
}

static void run(const c10::OperatorHandle& handle, const Operator& op, torch::jit::Stack* stack) {
  const auto& schema = handle.schema();
  const auto* arguments = stack->data() + (stack->size() - schema.arguments().size());
  const uint64_t hash = check_and_hash(op, schema, arguments);
  if (!op.makes_view) {
    op.count->add(hash);
  }
  if (reads(op, arguments)) {
    count_read(op.name.c_str());
  }
  call_host(handle, op, stack);
}

// The fallback of hardware copies every tensor to the CPU, waiting for it, and the results back.
static void fall_back(const c10::OperatorHandle& handle, const Operator& op, torch::jit::Stack* stack) {
  const auto& schema = handle.schema();
  const auto* arguments = stack->data() + (stack->size() - schema.arguments().size());
  op.count->add(check_and_hash(op, schema, arguments));
  op.count->mark_fallback();
  count_read(op.name.c_str(), /*fell_back=*/true);
  const auto count_copies = [](const c10::IValue& value, bool to_device) {
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().device().is_mps()) {
      count_copy(to_device, value.toTensor().nbytes());
    }
  };
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    count_copies(arguments[i], /*to_device=*/false);
  }
  call_host(handle, op, stack);
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    count_copies((*stack)[i], /*to_device=*/true);
    if (op.makes_view && (*stack)[i].isTensor()) { // a copy from the CPU shares no memory with the argument
      (*stack)[i] = (*stack)[i].toTensor().clone();
    }
  }
}

struct Native final : public c10::OperatorKernel {
  Native(const c10::OperatorHandle& handle, const std::string& read, bool numbers_only) : op(handle) {
    op.native = true;
    op.reads_numbers_only = numbers_only;
    if (const auto index = handle.schema().argumentIndexWithName(read)) {
      op.read = static_cast<size_t>(*index);
    }
  }
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
    run(handle, op, stack);
  }
  Operator op;
};

struct Fallback final : public c10::OperatorKernel {
  explicit Fallback(const c10::OperatorHandle& handle) : op(handle) {}
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
    fall_back(handle, op, stack);
  }
  Operator op;
};

// Hardware has a kernel, and the CPU has nothing that could stand in for it.
static void refuse(const c10::OperatorHandle& handle, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "The simulated mps device cannot run the operator '", handle.operator_name(), "': it exists on hardware "
      "alone, and no kernel of the CPU computes the same. Try it on a Mac, or do without it here.");
}

torch::CppFunction native_kernel(const c10::OperatorHandle& handle, const std::string& read, bool numbers_only) {
  if (!handle.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) {
    return torch::CppFunction::makeFromBoxedFunction<&refuse>();
  }
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Native>(handle, read, numbers_only));
}

torch::CppFunction fallback_kernel(const c10::OperatorHandle& handle) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Fallback>(handle));
}

// Reading a schema takes longer than a small kernel, so it is done once per operator.
static const Operator& described(const c10::OperatorHandle& handle) {
  static auto* const mutex = new std::mutex();
  static auto* const operators = new std::unordered_map<c10::OperatorName, std::unique_ptr<Operator>>();
  std::lock_guard<std::mutex> lock(*mutex);
  auto& known = (*operators)[handle.operator_name()];
  if (known == nullptr) {
    known = std::make_unique<Operator>(handle);
  }
  return *known;
}

void without_kernel(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  const Operator& op = described(handle);
  TORCH_CHECK_NOT_IMPLEMENTED(
      state().fallback, "The operator '", op.name, "' is not currently implemented for the MPS device: the operator "
      "table of torch " TORCH_VERSION " names no kernel for it. As on hardware, PYTORCH_ENABLE_MPS_FALLBACK=1 in the "
      "environment before torch is imported runs it on the CPU, which is slower. Otherwise use other operators here.");
  fall_back(handle, op, stack);
}

} // namespace simulator
