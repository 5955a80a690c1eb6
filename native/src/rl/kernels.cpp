#include "kernels.hpp"

#include "headrace/simd/choose.hpp"

namespace headrace::rl {

const Kernels& kernels(Isa isa) {
#if defined(__x86_64__)
  return for_isa<Kernels>(isa, &kKernelsScalar, &kKernelsAvx2, &kKernelsAvx512, nullptr);
#elif defined(__aarch64__)
  return for_isa<Kernels>(isa, &kKernelsScalar, nullptr, nullptr, &kKernelsNeon);
#else
  return for_isa<Kernels>(isa, &kKernelsScalar, nullptr, nullptr, nullptr);
#endif
}

}  // namespace headrace::rl
