// Advantages and returns over trajectories float32[T][N]. Each call does the columns [first, last), so that threads can
// share the work; every column depends on itself alone.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::rl {

/// The arrays of a trajectory that returns are computed from, each [T][N] but last_values[N].
struct Steps {
  std::size_t steps = 0;  // T
  std::size_t envs = 0;   // N
  const float* rewards = nullptr;
  const float* values = nullptr;
  const std::uint8_t* terminated = nullptr;
  const std::uint8_t* truncated = nullptr;
  const float* final_values = nullptr;  // V(final observation) where truncated
  const float* last_values = nullptr;   // V(observation after the last step)
};

/// Generalised advantage estimation (Schulman et al. 2016): delta_t = r_t + gamma V_{t+1} - V_t,
/// A_t = delta_t + gamma lambda A_{t+1}; V_{t+1} is 0 after termination and final_values after truncation, and both cut
/// the chain. returns = advantages + values.
void gae(const Steps& in, float gamma, float lambda, std::size_t first, std::size_t last, float* advantages,
         float* returns);

struct VTrace {
  float gamma = 0.99F;
  float lambda = 1.0F;
  float clip_rho = 1.0F;     // of the temporal differences: which value function is learnt
  float clip_c = 1.0F;       // of the traces: how fast
  float clip_pg_rho = 1.0F;  // of the advantages
};

/// V-trace (Espeholt et al. 2018). log_rhos[T][N] = log pi(a|x) - log mu(a|x). Gives value targets and the advantages
/// of the policy gradient.
void vtrace(const Steps& in, const float* log_rhos, const VTrace& settings, std::size_t first, std::size_t last,
            float* targets, float* advantages);

/// r_t + gamma r_{t+1} + ... up to `n` rewards, then gamma^n V; stops at the end of an episode (bootstrapping from
/// final_values if truncated) and at the end of the trajectory (last_values).
void n_step(const Steps& in, float gamma, std::size_t n, std::size_t first, std::size_t last, float* returns);

}  // namespace headrace::rl
