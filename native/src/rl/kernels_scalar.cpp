// The kernels of policies and rollouts for any processor.
#define HEADRACE_LANES_SCALAR
#include "kernels.hpp"
#include "policy_lanes.hpp"
#include "rollout_lanes.hpp"

namespace headrace::rl {

const Kernels kKernelsScalar = {load_tile, layer, sample_categorical, sample_gaussian, normalise, add_rewards};

}  // namespace headrace::rl
