// The policy's kernels for AVX-512.
#include "policy_lanes.hpp"

namespace headrace::rl {

const PolicyKernels kPolicyAvx512 = kKernels;

}  // namespace headrace::rl
