// The policy's kernels for AVX2.
#include "policy_lanes.hpp"

namespace headrace::rl {

const PolicyKernels kPolicyAvx2 = kKernels;

}  // namespace headrace::rl
