#include "headrace/rl/returns.hpp"

#include <algorithm>
#include <cmath>

namespace headrace::rl {
namespace {

/// Discount and value of what follows a step: 0 after termination; V(final observation) and a cut chain after
/// truncation.
struct Next {
  float value;
  float chain;  // 1 where the next step belongs to the same episode
};
inline Next next_of(const Steps& in, std::size_t at, float following) {
  if (in.terminated[at] != 0) return {0.0F, 0.0F};
  if (in.truncated[at] != 0) return {in.final_values[at], 0.0F};
  return {following, 1.0F};
}

/// fn(t, n, index, V of the next observation) for each column from the last step to the first.
template <class Fn>
void backwards(const Steps& in, std::size_t first, std::size_t last, Fn fn) {
  for (std::size_t t = in.steps; t-- > 0;) {
    const float* following = t + 1 < in.steps ? in.values + (t + 1) * in.envs : in.last_values;
    for (std::size_t n = first; n < last; ++n) {
      const std::size_t at = t * in.envs + n;
      fn(t, n, at, next_of(in, at, following[n]));
    }
  }
}

}  // namespace

void gae(const Steps& in, float gamma, float lambda, std::size_t first, std::size_t last, float* advantages,
         float* returns) {
  const float decay = gamma * lambda;
  backwards(in, first, last, [&](std::size_t t, std::size_t, std::size_t at, Next next) {
    const float ahead = t + 1 < in.steps ? advantages[at + in.envs] : 0.0F;
    const float delta = in.rewards[at] + gamma * next.value - in.values[at];
    advantages[at] = delta + decay * next.chain * ahead;
    returns[at] = advantages[at] + in.values[at];
  });
}

void vtrace(const Steps& in, const float* log_rhos, const VTrace& settings, std::size_t first, std::size_t last,
            float* targets, float* advantages) {
  const float gamma = settings.gamma;
  backwards(in, first, last, [&](std::size_t t, std::size_t n, std::size_t at, Next next) {
    const bool last_step = t + 1 == in.steps;
    const float value_ahead = last_step ? in.last_values[n] : in.values[at + in.envs];
    const float target_ahead = last_step ? value_ahead : targets[at + in.envs];
    const float rho = std::exp(log_rhos[at]);
    const float trace = settings.lambda * std::min(settings.clip_c, rho);
    const float delta = std::min(settings.clip_rho, rho) * (in.rewards[at] + gamma * next.value - in.values[at]);
    const float error = delta + gamma * next.chain * trace * (target_ahead - value_ahead);
    targets[at] = in.values[at] + error;
    // what the action was worth: its reward and a mix of the next target and the next value
    const float mixed = settings.lambda * target_ahead + (1.0F - settings.lambda) * value_ahead;
    const float bootstrap = next.chain != 0.0F ? mixed : next.value;
    advantages[at] = std::min(settings.clip_pg_rho, rho) * (in.rewards[at] + gamma * bootstrap - in.values[at]);
  });
}

void n_step(const Steps& in, float gamma, std::size_t n, std::size_t first, std::size_t last, float* returns) {
  for (std::size_t t = 0; t < in.steps; ++t) {
    const std::size_t end = std::min(in.steps, t + n);
    for (std::size_t column = first; column < last; ++column) {
      std::size_t stop = t;  // the last step whose reward counts
      while (stop + 1 < end && in.terminated[stop * in.envs + column] == 0 &&
             in.truncated[stop * in.envs + column] == 0) {
        ++stop;
      }
      const float following = stop + 1 < in.steps ? in.values[(stop + 1) * in.envs + column] : in.last_values[column];
      float sum = next_of(in, stop * in.envs + column, following).value;
      for (std::size_t i = stop + 1; i-- > t;) sum = in.rewards[i * in.envs + column] + gamma * sum;
      returns[t * in.envs + column] = sum;
    }
  }
}

}  // namespace headrace::rl
