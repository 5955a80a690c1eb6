// What a collector does when it is told to end, and when an environment gives numbers that are none.
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "check.hpp"
#include "headrace/error.hpp"
#include "rl_rollout.hpp"

using namespace headrace::rl;
using namespace rl_rollout;

namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float beyond = std::numeric_limits<float>::infinity();

std::atomic<int> calls{0};
std::atomic<bool> go_on{true};
std::atomic<int> nap_ms{0};

/// The counters, but from the 4th call on waiting until they may go on.
void slow_step(void* state, std::int64_t n, std::uint64_t seed, std::int64_t first, std::int64_t last,
               const void* actions, float* obs, float* final_obs, float* reward, std::uint8_t* terminated,
               std::uint8_t* truncated, std::int32_t autoreset) {
  if (calls.fetch_add(1) >= 3) {
    while (!go_on.load()) std::this_thread::yield();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(nap_ms.load()));
  rl_envs::step(state, n, seed, first, last, actions, obs, final_obs, reward, terminated, truncated, autoreset);
}

Collector slow_collector(const CollectorOptions& chosen) {
  calls = 0;
  return {spec(), {rl_envs::reset, slow_step, rl_envs::restart}, chosen.envs * sizeof(rl_envs::Counter), chosen};
}

std::size_t steps_written(const Rollout& out, std::size_t n) {
  std::size_t steps = 0;
  while (steps * n < out.rewards.size() && out.rewards[steps * n] != -9.0F) ++steps;
  return steps;
}

/// Puts the trouble in place for one test.
struct Troubled {
  explicit Troubled(rl_envs::Trouble what) { rl_envs::trouble = what; }
  ~Troubled() { rl_envs::trouble = {}; }
};

}  // namespace

TEST(rl_collector_ends_between_steps_when_it_is_cancelled) {
  constexpr std::size_t n = 64;
  Collector c = slow_collector(options(n, 100, 2));
  const auto weights = parameters(c.policy());
  Rollout out(100, n);
  CHECK_THROWS(headrace::Error, c.collect(weights, out.arrays()));  // not reset yet
  c.reset(1);
  go_on = false;
  std::thread other([&] {
    while (calls.load() < 4) std::this_thread::yield();
    c.cancel();
    go_on = true;
  });
  CHECK(c.collect(weights, out.arrays()) == Outcome::cancelled);
  other.join();
  CHECK(steps_written(out, n) == 4);
  CHECK_THROWS(headrace::Error, c.collect(weights, out.arrays()));  // its environments are at different steps
  c.clear_cancel();
  c.reset(1);
  CHECK(c.collect(weights, out.arrays()) == Outcome::complete);
}

TEST(rl_collector_asks_its_caller_now_and_then) {
  constexpr std::size_t n = 64;
  Collector c = slow_collector(options(n, 60, 2));
  const auto weights = parameters(c.policy());
  Rollout out(60, n);
  c.reset(1);
  nap_ms = 10;
  int asked = 0;
  CHECK(c.collect(weights, out.arrays(), [&] { return ++asked == 2; }) == Outcome::cancelled);
  nap_ms = 0;
  CHECK(asked == 2);
  CHECK(steps_written(out, n) < 60);
}

TEST(rl_collector_refuses_what_does_not_fit) {
  const auto fails = [](auto change) {
    CollectorOptions wrong = options(10, 10);
    change(wrong);
    CHECK_THROWS(headrace::Error, collector(wrong));
  };
  fails([](CollectorOptions& o) { o.envs = 0; });
  fails([](CollectorOptions& o) { o.steps = 0; });
  fails([](CollectorOptions& o) { o.threads = 0; });
  fails([](CollectorOptions& o) { o.shard = 100; });
  fails([](CollectorOptions& o) { o.gamma = 1.5; });
  fails([](CollectorOptions& o) { o.obs_limit = not_a_number; });
  fails([](CollectorOptions& o) { o.epsilon = 0.0; });
  fails([](CollectorOptions& o) { o.action_low = o.action_high = {1.0F}; });
  Collector c = collector(options(10, 10));
  c.reset(0);
  Rollout out(10, 10);
  std::vector<float> weights = parameters(c.policy());
  weights[17] = not_a_number;
  CHECK_THROWS(headrace::Error, c.collect(weights, out.arrays()));
  weights.pop_back();
  CHECK_THROWS(headrace::Error, c.collect(weights, out.arrays()));
}

TEST(rl_collector_stops_at_the_first_number_that_is_none) {
  constexpr std::size_t n = 300;
  for (const std::size_t threads : {1, 3}) {
    for (const bool in_reward : {true, false}) {
      const Troubled troubled({174, 4, in_reward, in_reward ? not_a_number : -beyond});  // its episodes have 7 steps
      Collector c = collector(options(n, 20, threads, 64));
      const auto weights = parameters(c.policy());
      Rollout out(20, n);
      c.reset(1);
      CHECK(c.collect(weights, out.arrays()) == Outcome::fault);
      CHECK(c.fault().has_value());
      CHECK(c.fault()->step == 3 && c.fault()->env == 174 && c.fault()->episode_step == 4);
      CHECK(c.fault()->in_reward == in_reward);
      CHECK(in_reward ? std::isnan(c.fault()->value) : c.fault()->value == -beyond && c.fault()->index == 1);
      CHECK(c.fault()->action == std::vector<double>{static_cast<double>(out.actions[3 * n + 174])});
      CHECK_THROWS(headrace::Error, c.collect(weights, out.arrays()));
      c.reset(1);
      rl_envs::trouble = {};
      CHECK(c.collect(weights, out.arrays()) == Outcome::complete);
    }
  }
}

TEST(rl_collector_drops_an_episode_that_went_wrong) {
  constexpr std::size_t n = 10;
  const Troubled troubled({4, 2, true, not_a_number});  // every episode of environment 4 in its second step
  CollectorOptions dropping = options(n, 12);
  dropping.bad_values = BadValues::drop;
  dropping.normalise_obs = false;
  Collector c = collector(dropping);
  const auto weights = parameters(c.policy());
  Rollout out(12, n);
  c.reset(1);
  CHECK(c.collect(weights, out.arrays()) == Outcome::complete);
  for (const Episode& episode : c.episodes()) CHECK(episode.env != 4);
  CHECK(c.faults() == 6);
  CHECK(c.fault()->step == 1 && c.fault()->env == 4);
  for (std::size_t t = 0; t < 12; ++t) {
    const std::size_t at = t * n + 4;
    CHECK(out.obs[at * 3] == static_cast<float>(t % 2) && out.obs[at * 3 + 1] == static_cast<float>(t / 2));
    CHECK(out.truncated[at] == t % 2 && out.terminated[at] == 0);
    if (t % 2 == 1) CHECK(out.rewards[at] == 0.0F && out.final_values[at] == out.values[at]);
  }
}

TEST(rl_collector_drops_without_a_function_to_restart) {
  constexpr std::size_t n = 10;
  const Troubled troubled({4, 2, false, not_a_number});
  CollectorOptions dropping = options(n, 12);
  dropping.bad_values = BadValues::drop;
  Collector c(spec(), {rl_envs::reset, rl_envs::step, nullptr}, n * sizeof(rl_envs::Counter), dropping);
  const auto weights = parameters(c.policy());
  Rollout out(12, n);
  c.reset(1);
  CHECK(c.collect(weights, out.arrays()) == Outcome::complete);
  CHECK(c.faults() == 6);
  for (const float x : out.obs) CHECK(std::isfinite(x));
}

TEST(rl_collector_clips_what_is_no_number) {
  constexpr std::size_t n = 10;
  CollectorOptions clipping = options(n, 12);
  clipping.bad_values = BadValues::clip;
  clipping.normalise_obs = false;
  for (const auto& [value, reward] : {std::pair{not_a_number, 0.0F}, {beyond, 10.0F}, {-beyond, -10.0F}}) {
    const Troubled troubled({4, 2, true, value});
    Collector c = collector(clipping);
    const auto weights = parameters(c.policy());
    Rollout out(12, n);
    c.reset(1);
    CHECK(c.collect(weights, out.arrays()) == Outcome::complete);
    CHECK(out.rewards[1 * n + 4] == reward);
    CHECK(c.faults() == 2);  // of episodes of 7 steps
    CHECK(c.episodes().size() > 4);
  }
  const Troubled troubled({4, 2, false, beyond});
  Collector c = collector(clipping);
  const auto weights = parameters(c.policy());
  Rollout out(12, n);
  c.reset(1);
  CHECK(c.collect(weights, out.arrays()) == Outcome::complete);
  CHECK(out.obs[(2 * n + 4) * 3 + 1] == 10.0F);
}

TEST(rl_collector_names_a_last_observation_that_is_no_number) {
  constexpr std::size_t n = 10;
  const Troubled troubled({3, 6, false, not_a_number});  // the last step of its episodes, which are truncated
  Collector c = collector(options(n, 12));
  const auto weights = parameters(c.policy());
  Rollout out(12, n);
  c.reset(1);
  CHECK(c.collect(weights, out.arrays()) == Outcome::fault);
  CHECK(c.fault()->step == 5 && c.fault()->env == 3 && c.fault()->index == 1 && c.fault()->episode_step == 6);
}
