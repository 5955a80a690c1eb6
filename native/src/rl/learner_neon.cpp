// The learner's kernels for NEON.

#include "learner_lanes.hpp"

namespace headrace::rl::learning {

const LearnerKernels kLearnerNeon = kKernels;

}  // namespace headrace::rl::learning
