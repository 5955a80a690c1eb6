// The row operations for AVX2 with FMA and F16C.
#include "ops_isas.hpp"
#include "ops_kernels.hpp"

namespace headrace::llm {

const Ops kOpsAvx2 = kOps;

}  // namespace headrace::llm
