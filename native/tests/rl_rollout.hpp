// A small policy over the counters of rl_envs.hpp, and room for what it collects.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "headrace/rl/collector.hpp"
#include "rl_envs.hpp"

namespace rl_rollout {

using namespace headrace::rl;

struct Rollout {
  std::vector<float> obs;
  std::vector<std::int32_t> actions;
  std::vector<float> log_probs, values, rewards, final_values, last_values;
  std::vector<std::uint8_t> terminated, truncated;

  Rollout(std::size_t t, std::size_t n)
      : obs(t * n * 3, -9.0F),
        actions(t * n * 2, -9),
        log_probs(t * n, -9.0F),
        values(t * n, -9.0F),
        rewards(t * n, -9.0F),
        final_values(t * n, -9.0F),
        last_values(n, -9.0F),
        terminated(t * n, 9),
        truncated(t * n, 9) {}
  TrajectoryArrays arrays() {
    return {obs.data(),        actions.data(),   log_probs.data(),    values.data(),     rewards.data(),
            terminated.data(), truncated.data(), final_values.data(), last_values.data()};
  }
  bool operator==(const Rollout&) const = default;
};

inline MlpSpec spec() {
  return {3, {8}, Activation::tanh, {HeadKind::categorical, {3}}};
}

inline std::vector<float> parameters(const Policy& policy) {
  std::vector<float> made(policy.layout().size);
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = std::sin(static_cast<float>(i)) * 0.3F;
  return made;
}

inline CollectorOptions options(std::size_t envs, std::size_t steps, std::size_t threads = 1, std::size_t shard = 0) {
  CollectorOptions made;
  made.envs = envs;
  made.steps = steps;
  made.threads = threads;
  made.shard = shard;
  return made;
}

inline Collector collector(const CollectorOptions& options, headrace::Isa isa = headrace::best_isa()) {
  return {spec(), rl_envs::counter, options.envs * sizeof(rl_envs::Counter), options, isa};
}

inline float value_of(const Collector& c, const std::vector<float>& weights, const float* obs) {
  PolicyScratch scratch(c.policy().layout());
  float value = 0.0F;
  c.policy().load(obs, 1, scratch);
  c.policy().critic(weights.data(), 1, scratch, &value);
  return value;
}

}  // namespace rl_rollout
