// Says that torch was built without CUDA. A build with CUDA takes that for the accelerator on every machine, and then
// there is none besides; hooks of higher priority than torch's own, in the process before torch asks, end that.
#include <ATen/detail/CUDAHooksInterface.h>

namespace at { // the macro names the registry without it

struct NoCUDA final : public CUDAHooksInterface {
  explicit NoCUDA(CUDAHooksArgs) {}
  bool isBuilt() const override {
    return false;
  }
};

C10_REGISTER_CLASS_WITH_PRIORITY(CUDAHooksRegistry, CUDAHooks, c10::REGISTRY_PREFERRED, NoCUDA)

} // namespace at
