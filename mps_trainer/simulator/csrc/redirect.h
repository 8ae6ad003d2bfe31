#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

namespace simulator {

torch::CppFunction native_kernel(const c10::OperatorHandle& handle);
torch::CppFunction fallback_kernel(const c10::OperatorHandle& handle);
void without_kernel(const c10::OperatorHandle& handle, torch::jit::Stack* stack);

} // namespace simulator
