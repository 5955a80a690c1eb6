// PPO and A2C for multilayer-perceptron actor-critics: collected steps in, better parameters out, in one call that runs
// all epochs and minibatches on a Team of threads.
//
// A minibatch is cut into slices whose number depends on its size alone; each slice adds up its gradient by itself, and
// the slices are added in their order. So the threads that share the work change no bit of the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>

#include "headrace/cpu.hpp"
#include "headrace/rl/policy.hpp"

namespace headrace::rl {

/// Collected steps, in any order; D = obs_size and K = head.actions() of the policy.
struct Experience {
  std::size_t count = 0;
  const float* obs = nullptr;         // [count][D]
  const void* actions = nullptr;      // [count][K] int32 (categorical) or float (gaussian)
  const float* log_probs = nullptr;   // [count], as are the following: of the policy that acted
  const float* values = nullptr;      // of the critic then
  const float* advantages = nullptr;  // as they come; normalised per minibatch if asked for
  const float* returns = nullptr;     // what the critic learns
};

inline constexpr float kUnlimited = std::numeric_limits<float>::infinity();

struct LearnOptions {
  std::size_t epochs = 4;
  std::size_t minibatches = 8;
  bool ratio = true;              // weight advantages by the ratio of probabilities (PPO); false: A2C's log-probability
  float clip = 0.2F;              // of the ratio
  float value_clip = kUnlimited;  // of how far the critic may go from `values`
  bool normalise_advantages = true;
  float value_coef = 0.5F;
  float entropy_coef = 0.0F;
  float max_grad_norm = 0.5F;
  float target_kl = kUnlimited;  // a minibatch beyond ends the update, without a step
  double learning_rate = 3e-4;
  double beta1 = 0.9;  // Adam (Kingma & Ba 2015)
  double beta2 = 0.999;
  double epsilon = 1e-5;
};

/// Means over the minibatches that were looked at. The loss is policy + value_coef value - entropy_coef entropy.
struct LearnReport {
  double policy = 0.0;
  double value = 0.0;  // 1/2 mean (V - return)^2
  double entropy = 0.0;
  double approx_kl = 0.0;           // mean of (ratio - 1) - log ratio
  double clip_fraction = 0.0;       // of samples whose ratio was beyond clip
  double grad_norm = 0.0;           // before clipping
  double explained_variance = 0.0;  // 1 - var(returns - values) / var(returns); NaN if returns are all the same
  std::size_t steps = 0;            // of Adam
  bool stopped = false;             // by target_kl
};

/// What a learner is, beside its spec: enough to go on bit by bit.
struct LearnState {
  std::span<float> parameters;  // flat, as MlpLayout says; also the two moments
  std::span<float> first_moments;
  std::span<float> second_moments;
  std::uint64_t steps = 0;    // of Adam, which its bias correction counts
  std::uint64_t updates = 0;  // which shuffles are drawn by
};

class Learner {
 public:
  /// All zero until load(). Throws invalid_input for a bad spec or number of threads.
  Learner(MlpSpec spec, std::uint64_t seed, std::size_t threads, Isa isa = best_isa());
  ~Learner();
  Learner(const Learner&) = delete;
  Learner& operator=(const Learner&) = delete;

  /// Copy a state in or out; the spans hold layout().size floats. Throws invalid_input for other lengths and, on
  /// load(), for numbers that are not finite.
  void load(const LearnState& state);
  void save(LearnState& state) const;

  /// Run all epochs. Throws invalid_input, with everything as it was before the call, for options out of range, for a
  /// number that is not finite or an action that does not exist (naming which), and if the gradient overflows.
  LearnReport update(const Experience& experience, const LearnOptions& options);

  [[nodiscard]] const MlpSpec& spec() const noexcept;
  [[nodiscard]] const MlpLayout& layout() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace::rl
