// The row operations for AVX-512.
#include "ops_isas.hpp"
#include "ops_kernels.hpp"

namespace headrace::llm {

const Ops kOpsAvx512 = kOps;

}  // namespace headrace::llm
