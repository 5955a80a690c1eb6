// The policy's kernels for the portable set.
#define HEADRACE_LANES_SCALAR #include "policy_lanes.hpp"

namespace headrace::rl {

const PolicyKernels kPolicyScalar = kKernels;

}  // namespace headrace::rl
