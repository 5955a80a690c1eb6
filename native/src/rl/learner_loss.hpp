// Losses of a tile and their derivatives with respect to what the networks put out: clipped surrogate (Schulman et al.
// 2017) or log-probability times advantage, entropy, squared error of the critic. 16 samples at a time.
#pragma once

#include <cstddef>

#include "headrace/rl/lanes_math.hpp"
#include "learner_kernels.hpp"

namespace headrace::rl::learning {
namespace {

inline Lanes negated(Lanes x) {
  return zero() - x;
}

/// Adds up what `live` lanes hold.
struct LaneSums {
  Lanes policy = zero(), value = zero(), entropy = zero(), kl = zero(), clipped = zero();

  void add_to(LossSums& sums) const {
    sums.policy += static_cast<double>(sum(policy));
    sums.value += static_cast<double>(sum(value));
    sums.entropy += static_cast<double>(sum(entropy));
    sums.kl += static_cast<double>(sum(kl));
    sums.clipped += static_cast<double>(sum(clipped));
  }
};

/// The policy's loss of 16 samples -> its derivative with respect to their log-probabilities, 0 where not live.
inline Lanes policy_loss(const Terms& terms, Lanes log_prob, Lanes old_log_prob, Lanes advantage, Mask live,
                         LaneSums& sums) {
  const Lanes one = broadcast(1.0F);
  const Lanes weight = broadcast(terms.weight);
  const Lanes scaled = (advantage - broadcast(terms.advantage_shift)) * broadcast(terms.advantage_scale);
  const Lanes log_ratio = log_prob - old_log_prob;
  const Lanes ratio = exp(log_ratio);
  const Lanes beyond = select(abs(ratio - one) > broadcast(terms.clip), one, zero());
  sums.kl = sums.kl + select(live, (ratio - one) - log_ratio, zero());
  sums.clipped = sums.clipped + select(live, beyond, zero());
  if (!terms.ratio) {
    sums.policy = sums.policy - select(live, log_prob * scaled, zero());
    return select(live, negated(scaled) * weight, zero());
  }
  const Lanes free = ratio * scaled;
  const Lanes held = min(max(ratio, broadcast(1.0F - terms.clip)), broadcast(1.0F + terms.clip)) * scaled;
  sums.policy = sums.policy - select(live, min(free, held), zero());
  return select(live, select(free > held, zero(), negated(free) * weight), zero());
}

inline void categorical_loss(const Plan& plan, const Terms& terms, std::size_t at, Mask live, const Scratch& s,
                             LaneSums& sums) {
  const Lanes half = broadcast(0.5F);
  Lanes log_prob = zero();
  Lanes entropy = zero();
  std::size_t from = at;
  for (std::size_t head = 0; head < plan.heads; from += plan.sizes[head] * kRows, ++head) {
    const std::size_t end = from + plan.sizes[head] * kRows;
    const Lanes action = load(s.actions + head * kRows + at);
    Lanes top = load(s.out + from);
    for (std::size_t j = from + kRows; j < end; j += kRows) top = max(load(s.out + j), top);
    Lanes total = zero();
    for (std::size_t j = from; j < end; j += kRows) {
      const Lanes e = exp(load(s.out + j) - top);
      store(s.probs + j, e);
      total = total + e;
    }
    const Lanes log_total = log(total);
    const Lanes share = broadcast(1.0F) / total;
    float choice = 0.0F;
    for (std::size_t j = from; j < end; j += kRows, choice += 1.0F) {
      const Lanes p = load(s.probs + j) * share;
      const Lanes log_p = (load(s.out + j) - top) - log_total;
      store(s.probs + j, p);
      store(s.scaled + j, log_p);
      entropy = entropy - p * log_p;
      log_prob = log_prob + select(half > abs(action - broadcast(choice)), log_p, zero());
    }
  }
  sums.entropy = sums.entropy + select(live, entropy, zero());
  const Lanes slope = policy_loss(terms, log_prob, load(s.log_probs + at), load(s.advantages + at), live, sums);
  const Lanes bonus = select(live, broadcast(terms.entropy_coef * terms.weight), zero());
  from = at;
  for (std::size_t head = 0; head < plan.heads; from += plan.sizes[head] * kRows, ++head) {
    const std::size_t end = from + plan.sizes[head] * kRows;
    const Lanes action = load(s.actions + head * kRows + at);
    Lanes entropy_of_head = zero();
    for (std::size_t j = from; j < end; j += kRows) {
      entropy_of_head = entropy_of_head - load(s.probs + j) * load(s.scaled + j);
    }
    float choice = 0.0F;
    for (std::size_t j = from; j < end; j += kRows, choice += 1.0F) {
      const Lanes p = load(s.probs + j);
      const Lanes taken = select(half > abs(action - broadcast(choice)), broadcast(1.0F), zero());
      const Lanes d = fma(bonus * p, load(s.scaled + j) + entropy_of_head, slope * (taken - p));
      store(s.d_out + j, select(live, d, zero()));
    }
  }
}

/// Derivatives with respect to log_std go to `d_log_std`, a row of the gradient.
inline void gaussian_loss(const Plan& plan, const Terms& terms, const float* log_std, std::size_t at, Mask live,
                          const Scratch& s, float* d_log_std, LaneSums& sums) {
  Lanes log_prob = zero();
  Lanes entropy = zero();
  for (std::size_t k = 0; k < plan.actions; ++k) {
    const Lanes spread = broadcast(log_std[k]);
    const Lanes inverse = exp(negated(spread));
    const Lanes z = (load(s.actions + k * kRows + at) - load(s.out + k * kRows + at)) * inverse;
    log_prob = log_prob - fma(broadcast(0.5F) * z, z, spread + broadcast(0.918938533F));  // ln sqrt(2 pi)
    entropy = entropy + (spread + broadcast(1.41893853F));                                // ln sqrt(2 pi e)
    store(s.scaled + k * kRows + at, z);
    store(s.probs + k * kRows + at, inverse);
  }
  sums.entropy = sums.entropy + select(live, entropy, zero());
  const Lanes slope = policy_loss(terms, log_prob, load(s.log_probs + at), load(s.advantages + at), live, sums);
  const Lanes bonus = select(live, broadcast(terms.entropy_coef * terms.weight), zero());
  for (std::size_t k = 0; k < plan.actions; ++k) {
    const Lanes z = load(s.scaled + k * kRows + at);
    store(s.d_out + k * kRows + at, select(live, slope * (z * load(s.probs + k * kRows + at)), zero()));
    d_log_std[k] += sum(select(live, slope * (z * z - broadcast(1.0F)), zero()) - bonus);
  }
}

/// 1/2 (V - return)^2, or the larger of that and the same with V held near its old value.
inline void value_loss(const Terms& terms, std::size_t at, Mask live, const Scratch& s, LaneSums& sums) {
  const Lanes value = load(s.out + at);
  const Lanes target = load(s.returns + at);
  const Lanes old_value = load(s.values + at);
  const Lanes error = value - target;
  const Lanes limit = broadcast(terms.value_clip);
  const Lanes moved = value - old_value;
  const Lanes held_error = (old_value + min(max(moved, negated(limit)), limit)) - target;
  const Lanes loss = error * error;
  const Lanes held = select(abs(moved) > limit, held_error * held_error, zero());
  const Lanes larger = max(held, loss);
  sums.value = sums.value + select(live, broadcast(0.5F) * larger, zero());
  const Lanes slope = error * broadcast(terms.value_coef * terms.weight);
  store(s.d_out + at, select(live, select(held > loss, zero(), slope), zero()));
}

}  // namespace
}  // namespace headrace::rl::learning
