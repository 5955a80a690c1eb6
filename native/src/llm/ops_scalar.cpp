// The row operations for any processor.
#define HEADRACE_LANES_SCALAR
#include "ops_isas.hpp"
#include "ops_kernels.hpp"

namespace headrace::llm {

const Ops kOpsScalar = kOps;

}  // namespace headrace::llm
