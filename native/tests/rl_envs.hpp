// Small environments with the C face of compiled ones, for tests of rollouts.
#pragma once

#include <cstdint>
#include <limits>

#include "headrace/rl/env.hpp"

namespace rl_envs {

/// A counter: the state of an environment is its step, its episode and a drift that its actions add to. The observation
/// is {step, episode, environment}. Episodes of even environments are terminated, those of odd ones truncated, after
/// 3 + environment % 5 steps. The reward is 1 + action. Environment `bad_env` gives a NaN at its step `bad_step`.
struct Counter {
  std::int64_t step;
  std::int64_t episode;
};
inline constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();

struct Trouble {
  std::int64_t env = never;
  std::int64_t step = 0;  // of an episode, from 1
  bool in_reward = true;
  float value = std::numeric_limits<float>::quiet_NaN();
};
inline Trouble trouble;

inline std::int64_t length_of(std::int64_t env) {
  return 3 + env % 5;
}

inline void observe(const Counter& state, std::int64_t env, float* obs) {
  obs[0] = static_cast<float>(state.step);
  obs[1] = static_cast<float>(state.episode);
  obs[2] = static_cast<float>(env);
}

inline void reset(void* state, std::int64_t, std::uint64_t, std::int64_t first, std::int64_t last, float* obs) {
  auto* counters = static_cast<Counter*>(state);
  for (std::int64_t env = first; env < last; ++env) {
    counters[env] = {0, 0};
    observe(counters[env], env, obs + 3 * env);
  }
}

inline void restart(void* state, std::int64_t, std::uint64_t, std::int64_t first, std::int64_t last,
                    const std::uint8_t* mask, float* obs) {
  auto* counters = static_cast<Counter*>(state);
  for (std::int64_t env = first; env < last; ++env) {
    if (mask[env] == 0) continue;
    counters[env] = {0, counters[env].episode + 1};
    observe(counters[env], env, obs + 3 * env);
  }
}

inline void step(void* state, std::int64_t, std::uint64_t, std::int64_t first, std::int64_t last, const void* actions,
                 float* obs, float* final_obs, float* reward, std::uint8_t* terminated, std::uint8_t* truncated,
                 std::int32_t) {
  auto* counters = static_cast<Counter*>(state);
  const auto* action = static_cast<const std::int32_t*>(actions);
  for (std::int64_t env = first; env < last; ++env) {
    Counter& counter = counters[env];
    ++counter.step;
    reward[env] = 1.0F + static_cast<float>(action[env]);
    const bool ended = counter.step == length_of(env);
    terminated[env] = ended && env % 2 == 0 ? 1 : 0;
    truncated[env] = ended && env % 2 == 1 ? 1 : 0;
    observe(counter, env, obs + 3 * env);
    if (env == trouble.env && counter.step == trouble.step) {
      (trouble.in_reward ? reward[env] : obs[3 * env + 1]) = trouble.value;
    }
    if (!ended) continue;
    for (int i = 0; i < 3; ++i) final_obs[3 * env + i] = obs[3 * env + i];
    counter = {0, counter.episode + 1};
    observe(counter, env, obs + 3 * env);
  }
}

inline constexpr headrace::rl::EnvFunctions counter = {reset, step, restart};

}  // namespace rl_envs
