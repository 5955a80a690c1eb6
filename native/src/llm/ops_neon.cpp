// The row operations for NEON.
#include "ops_isas.hpp"
#include "ops_kernels.hpp"

namespace headrace::llm {

const Ops kOpsNeon = kOps;

}  // namespace headrace::llm
