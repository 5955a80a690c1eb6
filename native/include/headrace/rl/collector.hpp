// The rollout loop: environments and a policy in, a trajectory out. Threads of a Team take shards of environments; each
// takes a shard through all T steps, so that its state stays in the cache, and writes every number once, where the
// trajectory has it. Results depend neither on the size of a shard nor on the number of threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "headrace/rl/env.hpp"
#include "headrace/rl/normalise.hpp"
#include "headrace/rl/policy.hpp"
#include "headrace/team.hpp"

namespace headrace::rl {

/// What happens when an environment gives a NaN or an infinity.
enum class BadValues : std::uint8_t {
  stop,  // collect() ends; the collector must be reset
  drop,  // the step's reward is 0, its episode ends there uncounted, and the environment begins anew
  clip,  // NaN counts as 0 (an observation: as the mean), an infinity as the limit of its sign
};

struct CollectorOptions {
  std::size_t envs = 0;   // N
  std::size_t steps = 0;  // T
  std::size_t threads = 1;
  std::size_t shard = 0;  // environments a thread takes at once; 0: by what fits in the cache
  std::uint64_t seed = 0;
  bool normalise_obs = true;
  bool normalise_reward = false;
  bool update_moments = true;  // false: the moments stay as they are (evaluation)
  bool greedy = false;
  float obs_limit = 10.0F;     // of a normalised number
  float reward_limit = 10.0F;  // of a scaled reward
  float gamma = 0.99F;         // of the return that rewards are scaled by
  double epsilon = 1e-8;       // added to variances
  BadValues bad_values = BadValues::stop;
  std::vector<float> action_low;   // bounds that actions of a Gaussian head are clipped to on their way to the
  std::vector<float> action_high;  // environment (the trajectory has them as drawn); empty: none
};

/// Where a trajectory goes: arrays as in headrace.rl.rollout.Trajectory, each complete for N environments.
struct TrajectoryArrays {
  float* obs = nullptr;        // [T][N][D]
  void* actions = nullptr;     // [T][N][K] int32 or float
  float* log_probs = nullptr;  // [T][N], as are the following
  float* values = nullptr;
  float* rewards = nullptr;
  std::uint8_t* terminated = nullptr;
  std::uint8_t* truncated = nullptr;
  float* final_values = nullptr;
  float* last_values = nullptr;  // [N]
};

struct Episode {
  double total = 0.0;  // undiscounted return of rewards as the environment gave them
  std::int32_t length = 0;
  std::int32_t env = 0;
};

/// The first bad number of a collect: by step, then by environment.
struct Fault {
  std::uint64_t step = 0;  // since the beginning
  std::size_t env = 0;
  std::size_t episode_step = 0;  // steps the episode had had before this one
  bool in_reward = false;
  std::size_t index = 0;  // of the number within the observation
  float value = 0.0F;
  std::vector<double> action;
};

}  // namespace headrace::rl
