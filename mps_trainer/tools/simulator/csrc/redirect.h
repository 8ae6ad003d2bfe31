#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <string>
#include <tuple>
#include <vector>

namespace simulator {

// Registers what hardware has a kernel for, and what falls back whatever the switch says; both are names of operators.
// `reads`: the operators whose kernel reads an argument, the argument's name, and whether it reads numbers only.
void register_kernels(
    const std::vector<std::string>& native, const std::vector<std::string>& always_fall_back,
    const std::vector<std::tuple<std::string, std::string, bool>>& reads);

torch::CppFunction native_kernel(const c10::OperatorHandle& handle, const std::string& read, bool numbers_only);
torch::CppFunction fallback_kernel(const c10::OperatorHandle& handle);
void without_kernel(const c10::OperatorHandle& handle, torch::jit::Stack* stack);

} // namespace simulator
