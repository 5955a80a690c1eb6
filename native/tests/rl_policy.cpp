// The policy against plain double arithmetic; the same bits on every instruction set, in whatever batch.
#include <cmath>
#include <cstring>
#include <map>
#include <numbers>
#include <string>
#include <vector>

#include "check.hpp"
#include "headrace/error.hpp"
#include "headrace/rl/lanes_math.hpp"
#include "headrace/rl/philox.hpp"
#include "headrace/rl/policy.hpp"

using namespace headrace::rl;

namespace {

std::vector<float> numbers(std::size_t count, std::uint64_t key, float scale) {
  std::vector<float> made(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Words words = philox({{static_cast<std::uint32_t>(i), 0, 0, 0}}, key);
    made[i] = (static_cast<float>(words.word[0] >> 8U) * 0x1p-23F - 1.0F) * scale;
  }
  return made;
}

std::vector<double> plain(const std::vector<float>& parameters, const std::vector<Layer>& layers, Activation activation,
                          const float* obs) {
  std::vector<double> x(obs, obs + layers.front().in);
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const Layer& layer = layers[l];
    std::vector<double> y(layer.out);
    for (std::size_t u = 0; u < layer.out; ++u) {
      y[u] = static_cast<double>(parameters[layer.bias + u]);
      for (std::size_t k = 0; k < layer.in; ++k) {
        y[u] += static_cast<double>(parameters[layer.weight + u * layer.in + k]) * x[k];
      }
      if (l + 1 < layers.size()) y[u] = activation == Activation::tanh ? std::tanh(y[u]) : std::max(0.0, y[u]);
    }
    x = y;
  }
  return x;
}

struct Result {
  std::vector<float> logits;
  std::vector<std::uint32_t> actions;
  std::vector<float> log_probs;
  std::vector<float> values;
};

Result act(const Policy& policy, const std::vector<float>& parameters, const std::vector<float>& obs, std::size_t first,
           std::size_t count, bool greedy = false, std::uint64_t step = 5) {
  const MlpSpec& spec = policy.spec();
  PolicyScratch scratch(policy.layout());
  Result out;
  out.actions.resize(count * spec.head.actions());
  out.log_probs.resize(count);
  out.values.resize(count);
  policy.load(obs.data() + first * spec.obs_size, count, scratch);
  policy.actor(parameters.data(), count, scratch);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t k = 0; k < spec.head.outputs(); ++k) out.logits.push_back(scratch.logits[k * kTile + i]);
  }
  policy.sample(parameters.data(), count, {7, first, step, greedy}, scratch, out.actions.data(), out.log_probs.data());
  policy.critic(parameters.data(), count, scratch, out.values.data());
  return out;
}

std::vector<MlpSpec> specs() {
  return {
      {4, {64, 64}, Activation::tanh, {HeadKind::categorical, {2}}},
      {3, {7, 13, 5}, Activation::relu, {HeadKind::categorical, {3, 2, 4, 1, 6}}},
      {17, {33}, Activation::tanh, {HeadKind::gaussian, {3}}},
      {5, {}, Activation::tanh, {HeadKind::gaussian, {6}}},
  };
}

}  // namespace

TEST(rl_philox_gives_the_published_numbers) {  // kat_vectors of the authors' Random123
  const Words zeros = philox({{0, 0, 0, 0}}, 0);
  CHECK(zeros.word[0] == 0x6627E8D5U && zeros.word[1] == 0xE169C58DU && zeros.word[2] == 0xBC57AC4CU &&
        zeros.word[3] == 0x9B00DBD8U);
  const Words pi = philox({{0x243F6A88U, 0x85A308D3U, 0x13198A2EU, 0x03707344U}}, 0x299F31D0A4093822U);
  CHECK(pi.word[0] == 0xD16CFE09U && pi.word[1] == 0x94FDCCEBU && pi.word[2] == 0x5001E420U &&
        pi.word[3] == 0x24126EA1U);
}

TEST(rl_tanh_log_and_turns_are_exact_to_some_ulp) {
  using namespace headrace;
  double worst_tanh = 0.0;
  double worst_log = 0.0;
  double worst_turn = 0.0;
  float largest = 0.0F;
  const auto in_lanes = [](float first, float step, auto fn, auto exact, double& worst, bool relative) {
    float x[16];
    float y[16];
    for (int i = 0; i < 16; ++i) x[i] = first + step * static_cast<float>(i);
    store(y, fn(load(x)));
    for (int i = 0; i < 16; ++i) {
      const double want = exact(static_cast<double>(x[i]));
      const double off = std::abs(static_cast<double>(y[i]) - want);
      worst = std::max(worst, relative && want != 0.0 ? off / std::abs(want) : off);
    }
    return y[15];
  };
  for (int i = 0; i < 20000; ++i) {
    const auto at = static_cast<float>(i);
    largest = std::max(largest, in_lanes(
                                    at * 6e-4F, 3.7e-5F, [](Lanes x) { return fast_tanh(x); },
                                    [](double x) { return std::tanh(x); }, worst_tanh, true));
    in_lanes(
        std::exp2f(at * 0.003F - 30.0F), std::exp2f(at * 0.003F - 35.0F), [](Lanes x) { return rl::log(x); },
        [](double x) { return std::log(x); }, worst_log, false);
    in_lanes(
        at / 20001.0F, 3e-6F, [](Lanes x) { return cos_turns(x); },
        [](double x) { return std::cos(2.0 * std::numbers::pi * x); }, worst_turn, false);
    in_lanes(
        at / 20001.0F, 3e-6F, [](Lanes x) { return sin_turns(x); },
        [](double x) { return std::sin(2.0 * std::numbers::pi * x); }, worst_turn, false);
  }
  CHECK(worst_tanh < 4.0 * 0x1p-23);
  CHECK(worst_log < 4e-6);  // absolute; the results reach 21
  CHECK(worst_turn < 3e-7);
  CHECK(largest <= 1.0F + 0x1p-22F);
  float y[16];
  store(y, fast_tanh(broadcast(std::nanf(""))));
  CHECK(std::isnan(y[0]));
  store(y, fast_tanh(broadcast(-INFINITY)));
  CHECK(std::abs(y[0] + 1.0F) <= 0x1p-22F);
}

TEST(rl_policy_is_the_sum_of_its_products) {
  for (const MlpSpec& spec : specs()) {
    const Policy policy(spec);
    const auto parameters = numbers(policy.layout().size, 1, 0.4F);
    const auto obs = numbers(kTile * spec.obs_size, 2, 2.0F);
    const Result got = act(policy, parameters, obs, 0, kTile);
    double worst = 0.0;
    for (std::size_t i = 0; i < kTile; ++i) {
      const float* row = obs.data() + i * spec.obs_size;
      const auto logits = plain(parameters, policy.layout().actor, spec.activation, row);
      for (std::size_t k = 0; k < logits.size(); ++k) {
        worst = std::max(worst, std::abs(logits[k] - static_cast<double>(got.logits[i * logits.size() + k])));
      }
      const auto value = plain(parameters, policy.layout().critic, spec.activation, row);
      worst = std::max(worst, std::abs(value[0] - static_cast<double>(got.values[i])));
    }
    CHECK(worst < 5e-6);
  }
}

TEST(rl_policy_gives_the_same_bits_everywhere) {
  for (const MlpSpec& spec : specs()) {
    const Policy best(spec);
    const auto parameters = numbers(best.layout().size, 3, 0.5F);
    const auto obs = numbers(kTile * spec.obs_size, 4, 3.0F);
    const Result whole = act(best, parameters, obs, 0, kTile);
    const auto same = [](const auto& a, const auto& b, std::size_t from) {
      return std::memcmp(a.data(), b.data() + from, a.size() * 4) == 0;
    };
    for (const headrace::Isa isa : headrace::supported_isas()) {
      const Policy policy(spec, isa);
      for (const std::size_t count : {1, 15, 16, 17, 40, 64}) {
        const std::size_t first = (kTile - count) / 3;
        const Result part = act(policy, parameters, obs, first, count);
        CHECK(same(part.logits, whole.logits, first * spec.head.outputs()));
        CHECK(same(part.actions, whole.actions, first * spec.head.actions()));
        CHECK(same(part.log_probs, whole.log_probs, first));
        CHECK(same(part.values, whole.values, first));
      }
    }
  }
}

TEST(rl_categorical_actions_come_as_often_as_their_probabilities) {
  const Policy policy({1, {}, Activation::tanh, {HeadKind::categorical, {3, 2}}});
  const std::vector<float> obs(kTile, 0.0F);
  std::vector<float> parameters(policy.layout().size, 0.0F);
  const double wanted[5] = {0.2, 0.7, 0.1, 0.95, 0.05};
  for (std::size_t k = 0; k < 5; ++k) {
    parameters[policy.layout().actor[0].bias + k] = static_cast<float>(std::log(wanted[k]) + 3.0);
  }
  std::map<std::uint32_t, double> first;
  std::map<std::uint32_t, double> second;
  double both = 0.0;
  constexpr std::size_t rounds = 2000;
  for (std::size_t step = 0; step < rounds; ++step) {
    const Result got = act(policy, parameters, obs, 0, kTile, false, step);
    for (std::size_t i = 0; i < kTile; ++i) {
      const std::uint32_t a = got.actions[2 * i];
      const std::uint32_t b = got.actions[2 * i + 1];
      first[a] += 1.0 / (rounds * kTile);
      second[b] += 1.0 / (rounds * kTile);
      both += a == 1 && b == 1 ? 1.0 / (rounds * kTile) : 0.0;
      CHECK(std::abs(static_cast<double>(got.log_probs[i]) - std::log(wanted[a] * wanted[3 + b])) < 1e-5);
    }
  }
  for (std::uint32_t a = 0; a < 3; ++a) CHECK(std::abs(first[a] - wanted[a]) < 0.006);
  for (std::uint32_t b = 0; b < 2; ++b) CHECK(std::abs(second[b] - wanted[3 + b]) < 0.006);
  CHECK(std::abs(both - 0.7 * 0.05) < 0.004);  // the heads are drawn apart
  const Result greedy = act(policy, parameters, obs, 0, kTile, true);
  for (std::size_t i = 0; i < kTile; ++i) CHECK(greedy.actions[2 * i] == 1 && greedy.actions[2 * i + 1] == 0);
}

TEST(rl_categorical_never_draws_what_is_impossible) {
  const Policy policy({1, {}, Activation::tanh, {HeadKind::categorical, {4}}});
  std::vector<float> parameters(policy.layout().size, 0.0F);
  const std::size_t bias = policy.layout().actor[0].bias;
  parameters[bias] = parameters[bias + 3] = -200.0F;  // e^-200 is 0 in float32
  const std::vector<float> obs(kTile, 0.0F);
  for (std::uint64_t step = 0; step < 3000; ++step) {
    for (const std::uint32_t action : act(policy, parameters, obs, 0, kTile, false, step).actions) {
      CHECK(action == 1 || action == 2);
    }
  }
}

TEST(rl_gaussian_actions_are_normal_and_know_their_density) {
  const Policy policy({1, {}, Activation::tanh, {HeadKind::gaussian, {5}}});
  std::vector<float> parameters(policy.layout().size, 0.0F);
  const std::size_t bias = policy.layout().actor[0].bias;
  for (std::size_t k = 0; k < 5; ++k) {
    parameters[bias + k] = static_cast<float>(k);
    parameters[policy.layout().log_std + k] = static_cast<float>(k) * 0.5F - 1.0F;
  }
  const std::vector<float> obs(kTile, 0.0F);
  constexpr std::size_t rounds = 3000;
  double sum[5] = {};
  double square[5] = {};
  double fourth[5] = {};
  double cross = 0.0;
  for (std::size_t step = 0; step < rounds; ++step) {
    const Result got = act(policy, parameters, obs, 0, kTile, false, step);
    for (std::size_t i = 0; i < kTile; ++i) {
      double density = 0.0;
      double z[5];
      for (std::size_t k = 0; k < 5; ++k) {
        const auto action = static_cast<double>(__builtin_bit_cast(float, got.actions[5 * i + k]));
        const double log_std = static_cast<double>(k) * 0.5 - 1.0;
        z[k] = (action - static_cast<double>(k)) / std::exp(log_std);
        density += -0.5 * z[k] * z[k] - log_std - 0.5 * std::log(2.0 * std::numbers::pi);
        sum[k] += z[k];
        square[k] += z[k] * z[k];
        fourth[k] += z[k] * z[k] * z[k] * z[k];
      }
      cross += z[0] * z[1];
      CHECK(std::abs(density - static_cast<double>(got.log_probs[i])) < 2e-4);
    }
  }
  constexpr double n = rounds * kTile;
  for (std::size_t k = 0; k < 5; ++k) {
    CHECK(std::abs(sum[k] / n) < 0.01);
    CHECK(std::abs(square[k] / n - 1.0) < 0.015);
    CHECK(std::abs(fourth[k] / n - 3.0) < 0.12);
  }
  CHECK(std::abs(cross / n) < 0.01);
  const Result greedy = act(policy, parameters, obs, 0, 1, true);
  for (std::size_t k = 0; k < 5; ++k) {
    CHECK(__builtin_bit_cast(float, greedy.actions[k]) == static_cast<float>(k));
  }
}

TEST(rl_draws_depend_on_seed_environment_and_step_alone) {
  const Policy policy({1, {}, Activation::tanh, {HeadKind::categorical, {1000}}});
  const std::vector<float> parameters(policy.layout().size, 0.0F);
  const std::vector<float> obs(kTile, 0.0F);
  const Result whole = act(policy, parameters, obs, 0, kTile);
  std::size_t moved = 0;
  for (std::size_t env = 0; env < kTile; ++env) {
    CHECK(act(policy, parameters, obs, env, 1).actions[0] == whole.actions[env]);
    moved += act(policy, parameters, obs, env, 1, false, 6).actions[0] == whole.actions[env] ? 0 : 1;
  }
  CHECK(moved > kTile - 4);
}

TEST(rl_policy_refuses_sizes_of_nothing) {
  CHECK_THROWS(headrace::Error, Policy({0, {4}, Activation::tanh, {HeadKind::categorical, {2}}}));
  CHECK_THROWS(headrace::Error, Policy({4, {0}, Activation::tanh, {HeadKind::categorical, {2}}}));
  CHECK_THROWS(headrace::Error, Policy({4, {4}, Activation::tanh, {HeadKind::categorical, {}}}));
  CHECK_THROWS(headrace::Error, Policy({4, {4}, Activation::tanh, {HeadKind::categorical, {2, 0}}}));
}
