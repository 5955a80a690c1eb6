// Rollouts over an environment whose every number can be told beforehand.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "check.hpp"
#include "headrace/rl/collector.hpp"
#include "rl_rollout.hpp"

using namespace headrace::rl;
using namespace rl_rollout;

TEST(rl_collector_writes_what_happened) {
  constexpr std::size_t n = 150;
  constexpr std::size_t t = 12;
  CollectorOptions raw = options(n, t);
  raw.normalise_obs = false;
  Collector c = collector(raw);
  c.reset(11);
  const auto weights = parameters(c.policy());
  Rollout out(t, n);
  std::vector<std::int64_t> step(n, 0);
  std::vector<std::int64_t> episode(n, 0);
  std::vector<double> total(n, 0.0);
  for (int round = 0; round < 3; ++round) {
    CHECK(c.collect(weights, out.arrays()) == Outcome::complete);
    std::vector<Episode> wanted;
    for (std::size_t i = 0; i < t; ++i) {
      for (std::size_t env = 0; env < n; ++env) {
        const std::size_t at = i * n + env;
        const float* obs = out.obs.data() + at * 3;
        CHECK(obs[0] == static_cast<float>(step[env]) && obs[1] == static_cast<float>(episode[env]) &&
              obs[2] == static_cast<float>(env));
        CHECK(out.values[at] == value_of(c, weights, obs));
        CHECK(out.actions[at] >= 0 && out.actions[at] < 3 && out.log_probs[at] < 0.0F);
        CHECK(out.rewards[at] == 1.0F + static_cast<float>(out.actions[at]));
        total[env] += static_cast<double>(out.rewards[at]);
        const bool ended = ++step[env] == rl_envs::length_of(static_cast<std::int64_t>(env));
        CHECK((out.terminated[at] != 0) == (ended && env % 2 == 0));
        CHECK((out.truncated[at] != 0) == (ended && env % 2 == 1));
        const float last[3] = {static_cast<float>(step[env]), static_cast<float>(episode[env]),
                               static_cast<float>(env)};
        CHECK(out.final_values[at] == (out.truncated[at] != 0 ? value_of(c, weights, last) : 0.0F));
        if (!ended) continue;
        wanted.push_back({total[env], static_cast<std::uint64_t>(step[env]), env});
        step[env] = 0;
        ++episode[env];
        total[env] = 0.0;
      }
    }
    for (std::size_t env = 0; env < n; ++env) {
      const float obs[3] = {static_cast<float>(step[env]), static_cast<float>(episode[env]), static_cast<float>(env)};
      CHECK(out.last_values[env] == value_of(c, weights, obs));
    }
    CHECK(c.episodes().size() == wanted.size());
    double sum = 0.0;
    double counted = 0.0;
    for (const Episode& e : wanted) sum += e.total * static_cast<double>(e.length * (e.env + 1));
    for (const Episode& e : c.episodes()) counted += e.total * static_cast<double>(e.length * (e.env + 1));
    CHECK(sum == counted);  // whole numbers
    CHECK(c.state().step == static_cast<std::uint64_t>(round + 1) * t);
  }
}

TEST(rl_collector_gives_the_same_whoever_does_the_work) {
  constexpr std::size_t n = 330;
  constexpr std::size_t t = 9;
  std::vector<Rollout> first;
  std::vector<double> moments;
  std::vector<double> totals;
  for (const headrace::Isa isa : headrace::supported_isas()) {
    for (const auto& [threads, shard] : {std::pair<std::size_t, std::size_t>{1, 0}, {1, 64}, {3, 64}, {2, 128}}) {
      CollectorOptions chosen = options(n, t, threads, shard);
      chosen.normalise_reward = true;
      Collector c = collector(chosen, isa);
      c.reset(3);
      const auto weights = parameters(c.policy());
      std::vector<double> seen;
      for (std::size_t round = 0; round < 3; ++round) {
        Rollout out(t, n);
        CHECK(c.collect(weights, out.arrays()) == Outcome::complete);
        for (const Episode& e : c.episodes()) seen.push_back(e.total);
        if (first.size() <= round) first.push_back(out);
        CHECK(out == first[round]);
      }
      std::vector<double> now = c.state().obs_moments.mean;
      now.insert(now.end(), c.state().obs_moments.m2.begin(), c.state().obs_moments.m2.end());
      now.push_back(c.state().return_moments.m2[0]);
      if (moments.empty()) moments = now;
      if (totals.empty()) totals = seen;
      CHECK(now == moments);
      CHECK(seen == totals);
    }
  }
}

TEST(rl_collector_normalises_with_what_it_knew_before) {
  constexpr std::size_t n = 70;
  constexpr std::size_t t = 10;
  Collector c = collector(options(n, t));
  CollectorOptions raw = options(n, t);
  raw.normalise_obs = false;
  Collector plain = collector(raw);
  c.reset(5);
  plain.reset(5);
  std::vector<float> weights(c.policy().layout().size, 0.0F);  // acts the same whatever it sees
  std::vector<double> count(1, 0.0);
  double sum[3] = {};
  double square[3] = {};
  for (int round = 0; round < 3; ++round) {
    Rollout out(t, n);
    Rollout seen(t, n);
    CHECK(c.collect(weights, out.arrays()) == Outcome::complete);
    CHECK(plain.collect(weights, seen.arrays()) == Outcome::complete);
    CHECK(out.actions == seen.actions);
    for (std::size_t i = 0; i < t * n * 3; ++i) {
      const double x = static_cast<double>(seen.obs[i]);
      const double mean = round == 0 ? 0.0 : sum[i % 3] / count[0];
      const double variance = round == 0 ? 1.0 : square[i % 3] / count[0] - mean * mean;
      const double wanted = std::clamp((x - mean) / std::sqrt(variance + 1e-8), -10.0, 10.0);
      CHECK(std::abs(wanted - static_cast<double>(out.obs[i])) < 1e-4);
    }
    for (std::size_t i = 0; i < t * n * 3; ++i) {
      const double x = static_cast<double>(seen.obs[i]);
      sum[i % 3] += x;
      square[i % 3] += x * x;
    }
    count[0] += static_cast<double>(t * n);
    CHECK(c.state().obs_moments.count == count[0]);
  }
}

TEST(rl_collector_scales_rewards_by_the_spread_of_returns) {
  constexpr std::size_t n = 70;
  constexpr std::size_t t = 40;
  CollectorOptions scaled = options(n, t);
  scaled.normalise_reward = true;
  scaled.gamma = 0.9;
  scaled.reward_limit = 2.0F;
  Collector c = collector(scaled);
  Collector plain = collector(options(n, t));
  c.reset(5);
  plain.reset(5);
  const auto weights = parameters(c.policy());
  std::vector<double> running(n, 0.0);
  double count = 0.0;
  double sum = 0.0;
  double square = 0.0;
  for (int round = 0; round < 2; ++round) {
    Rollout out(t, n);
    Rollout seen(t, n);
    CHECK(c.collect(weights, out.arrays()) == Outcome::complete);
    CHECK(plain.collect(weights, seen.arrays()) == Outcome::complete);
    for (std::size_t i = 0; i < t * n; ++i) {
      double& back = running[i % n];
      back = back * 0.9 + static_cast<double>(seen.rewards[i]);
      count += 1.0;
      sum += back;
      square += back * back;
      if ((seen.terminated[i] | seen.truncated[i]) != 0) back = 0.0;
    }
    const double deviation = std::sqrt(square / count - sum * sum / count / count);
    for (std::size_t i = 0; i < t * n; ++i) {
      const double wanted = std::min(2.0, static_cast<double>(seen.rewards[i]) / deviation);
      CHECK(std::abs(wanted - static_cast<double>(out.rewards[i])) < 1e-5);
    }
    CHECK(c.episodes().size() == plain.episodes().size());
    CHECK(c.episodes()[5].total == plain.episodes()[5].total);  // as the environment gave them
  }
}

TEST(rl_collector_goes_on_where_a_state_was_taken) {
  constexpr std::size_t n = 70;
  constexpr std::size_t t = 7;
  CollectorOptions chosen = options(n, t, 2);
  chosen.normalise_reward = true;
  Collector c = collector(chosen);
  Collector later = collector(chosen);
  c.reset(5);
  const auto weights = parameters(c.policy());
  Rollout out(t, n);
  CHECK(c.collect(weights, out.arrays()) == Outcome::complete);
  CollectorState& from = c.state();
  CollectorState& to = later.state();
  std::memcpy(to.env.data(), from.env.data(), from.env.size());
  to.obs = from.obs;
  to.totals = from.totals;
  to.discounted = from.discounted;
  to.began = from.began;
  to.seed = from.seed;
  to.step = from.step;
  to.obs_moments = from.obs_moments;
  to.return_moments = from.return_moments;
  later.resume();
  for (int round = 0; round < 3; ++round) {
    Rollout again(t, n);
    CHECK(c.collect(weights, out.arrays()) == Outcome::complete);
    CHECK(later.collect(weights, again.arrays()) == Outcome::complete);
    CHECK(out == again);
  }
}
