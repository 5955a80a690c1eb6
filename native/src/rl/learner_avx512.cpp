// The learner's kernels for AVX-512.

#include "learner_lanes.hpp"

namespace headrace::rl::learning {

const LearnerKernels kLearnerAvx512 = kKernels;

}  // namespace headrace::rl::learning
