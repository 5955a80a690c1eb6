// Returns by hand and by their definition, over ends of both kinds.
#include <algorithm>
#include <cmath>
#include <vector>

#include "check.hpp"
#include "headrace/rl/philox.hpp"
#include "headrace/rl/returns.hpp"

using namespace headrace::rl;

namespace {

/// A trajectory of random numbers; about an eighth of the steps terminate, an eighth truncate, some do both.
struct Sample {
  std::size_t steps;
  std::size_t envs;
  std::vector<float> rewards, values, final_values, last_values, log_rhos;
  std::vector<std::uint8_t> terminated, truncated;

  Sample(std::size_t t, std::size_t n) : steps(t), envs(n) {
    for (std::size_t i = 0; i < t * n; ++i) {
      const Words words = philox({{static_cast<std::uint32_t>(i), 1, 2, 3}}, 9);
      const auto number = [&](int w) { return static_cast<float>(words.word[w] >> 8U) * 0x1p-23F - 1.0F; };
      rewards.push_back(number(0));
      values.push_back(number(1));
      log_rhos.push_back(number(2));
      terminated.push_back(words.word[3] % 8 == 0 ? 1 : 0);
      truncated.push_back(words.word[3] / 8 % 8 == 0 ? 1 : 0);
      final_values.push_back(truncated.back() != 0 ? number(0) * 3.0F : 0.0F);
    }
    for (std::size_t i = 0; i < n; ++i) last_values.push_back(static_cast<float>(i) * 0.5F - 1.0F);
  }
  [[nodiscard]] Steps view() const {
    return {steps,
            envs,
            rewards.data(),
            values.data(),
            terminated.data(),
            truncated.data(),
            final_values.data(),
            last_values.data()};
  }
  [[nodiscard]] bool ended(std::size_t at) const { return (terminated[at] | truncated[at]) != 0; }
  [[nodiscard]] double next(std::size_t t, std::size_t n) const {
    const std::size_t at = t * envs + n;
    if (terminated[at] != 0) return 0.0;
    if (truncated[at] != 0) return static_cast<double>(final_values[at]);
    return static_cast<double>(t + 1 < steps ? values[at + envs] : last_values[n]);
  }
};

}  // namespace

TEST(rl_gae_is_the_sum_of_discounted_differences) {
  const Sample s(23, 5);
  std::vector<float> advantages(23 * 5);
  std::vector<float> returns(advantages.size());
  gae(s.view(), 0.9F, 0.8F, 0, 2, advantages.data(), returns.data());
  gae(s.view(), 0.9F, 0.8F, 2, 5, advantages.data(), returns.data());
  for (std::size_t n = 0; n < 5; ++n) {
    for (std::size_t t = 0; t < 23; ++t) {
      double sum = 0.0;
      double weight = 1.0;
      for (std::size_t i = t; i < 23; ++i) {
        const std::size_t at = i * 5 + n;
        sum += weight * (static_cast<double>(s.rewards[at]) + 0.9 * s.next(i, n) - static_cast<double>(s.values[at]));
        weight *= 0.9 * 0.8;
        if (s.ended(at)) break;
      }
      const std::size_t at = t * 5 + n;
      CHECK(std::abs(sum - static_cast<double>(advantages[at])) < 2e-6);
      CHECK(returns[at] == advantages[at] + s.values[at]);
    }
  }
}

TEST(rl_vtrace_clips_each_ratio_by_its_own_limit) {
  const Sample s(19, 3);
  std::vector<float> targets(19 * 3);
  std::vector<float> advantages(targets.size());
  const VTrace settings{0.95F, 0.9F, 1.3F, 0.7F, 1.6F};
  vtrace(s.view(), s.log_rhos.data(), settings, 0, 3, targets.data(), advantages.data());
  for (std::size_t n = 0; n < 3; ++n) {
    for (std::size_t t = 0; t < 19; ++t) {
      const auto rho = [&](std::size_t i) { return std::exp(static_cast<double>(s.log_rhos[i * 3 + n])); };
      double sum = 0.0;
      double weight = 1.0;
      for (std::size_t i = t; i < 19; ++i) {  // equation 1 of the paper, with lambda in the traces
        const std::size_t at = i * 3 + n;
        sum += weight * std::min(1.3, rho(i)) *
               (static_cast<double>(s.rewards[at]) + 0.95 * s.next(i, n) - static_cast<double>(s.values[at]));
        weight *= 0.95 * 0.9 * std::min(0.7, rho(i));
        if (s.ended(at)) break;
      }
      const std::size_t at = t * 3 + n;
      CHECK(std::abs(static_cast<double>(s.values[at]) + sum - static_cast<double>(targets[at])) < 3e-6);
      double ahead = s.next(t, n);
      if (!s.ended(at) && t + 1 < 19) ahead = 0.9 * static_cast<double>(targets[at + 3]) + 0.1 * ahead;
      const double advantage = std::min(1.6, rho(t)) *
                               (static_cast<double>(s.rewards[at]) + 0.95 * ahead - static_cast<double>(s.values[at]));
      CHECK(std::abs(advantage - static_cast<double>(advantages[at])) < 3e-6);
    }
  }
}

TEST(rl_n_step_returns_stop_at_the_ends) {
  const Sample s(17, 4);
  std::vector<float> returns(17 * 4);
  for (const std::size_t steps : {1, 3, 40}) {
    n_step(s.view(), 0.9F, steps, 0, 4, returns.data());
    for (std::size_t n = 0; n < 4; ++n) {
      for (std::size_t t = 0; t < 17; ++t) {
        double sum = 0.0;
        double weight = 1.0;
        std::size_t i = t;
        for (;; ++i) {
          sum += weight * static_cast<double>(s.rewards[i * 4 + n]);
          weight *= 0.9;
          if (s.ended(i * 4 + n) || i + 1 == 17 || i + 1 == t + steps) break;
        }
        sum += weight * s.next(i, n);
        CHECK(std::abs(sum - static_cast<double>(returns[t * 4 + n])) < 2e-6);
      }
    }
  }
}
