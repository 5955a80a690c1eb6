#include "headrace/llm/ops.hpp"

#include "headrace/simd/choose.hpp"
#include "ops_isas.hpp"

namespace headrace::llm {

const Ops& ops(Isa isa) {
#if defined(__x86_64__)
  return for_isa<Ops>(isa, &kOpsScalar, &kOpsAvx2, &kOpsAvx512, nullptr);
#elif defined(__aarch64__)
  return for_isa<Ops>(isa, &kOpsScalar, nullptr, nullptr, &kOpsNeon);
#else
  return for_isa<Ops>(isa, &kOpsScalar, nullptr, nullptr, nullptr);
#endif
}

}  // namespace headrace::llm
