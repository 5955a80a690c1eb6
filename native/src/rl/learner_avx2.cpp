// The learner's kernels for AVX2 with FMA and F16C.

#include "learner_lanes.hpp"

namespace headrace::rl::learning {

const LearnerKernels kLearnerAvx2 = kKernels;

}  // namespace headrace::rl::learning
