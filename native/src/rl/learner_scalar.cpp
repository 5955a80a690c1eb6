// The learner's kernels for any processor.
#define HEADRACE_LANES_SCALAR
#include "learner_lanes.hpp"

namespace headrace::rl::learning {

const LearnerKernels kLearnerScalar = kKernels;

}  // namespace headrace::rl::learning
