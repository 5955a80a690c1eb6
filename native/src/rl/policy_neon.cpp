// The policy's kernels for NEON.
#include "policy_lanes.hpp"

namespace headrace::rl {

const PolicyKernels kPolicyNeon = kKernels;

}  // namespace headrace::rl
