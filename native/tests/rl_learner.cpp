#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../src/rl/learner_batch.hpp"
#include "../src/rl/learner_plan.hpp"
#include "check.hpp"
#include "headrace/error.hpp"
#include "headrace/rl/learner.hpp"

using namespace headrace;
using namespace headrace::rl;

namespace {

const MlpSpec kDiscrete{3, {17, 5}, Activation::tanh, {HeadKind::categorical, {2, 3}}};
const MlpSpec kContinuous{2, {20}, Activation::relu, {HeadKind::gaussian, {3}}};
const MlpSpec kLinear{4, {}, Activation::tanh, {HeadKind::categorical, {4}}};

struct Steps {
  Steps(const MlpSpec& spec, std::size_t n) : obs(n * spec.obs_size), choices(n * spec.head.actions()) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (float& x : obs) x = normal(random);
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const std::size_t size = spec.head.sizes[i % spec.head.sizes.size()];
      choices[i] = static_cast<std::int32_t>(random() % size);
      numbers.push_back(normal(random));
    }
    const float log_prob = spec.head.kind == HeadKind::categorical ? -1.5F : -4.0F;
    for (std::size_t i = 0; i < n; ++i) {
      log_probs.push_back(log_prob + 0.2F * normal(random));
      values.push_back(normal(random));
      advantages.push_back(normal(random));
      returns.push_back(normal(random));
    }
    const bool gaussian = spec.head.kind == HeadKind::gaussian;
    experience = {n,
                  obs.data(),
                  gaussian ? static_cast<const void*>(numbers.data()) : choices.data(),
                  log_probs.data(),
                  values.data(),
                  advantages.data(),
                  returns.data()};
  }

  std::vector<float> obs, numbers, log_probs, values, advantages, returns;
  std::vector<std::int32_t> choices;
  Experience experience;
};

struct State {
  explicit State(const MlpSpec& spec)
      : parameters(layout_of(spec).size), first(parameters.size()), second(parameters.size()) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (float& x : parameters) x = 0.3F * normal(random);
  }

  LearnState spans() { return {parameters, first, second, steps, updates}; }
  void read(const Learner& learner) {
    LearnState state = spans();
    learner.save(state);
    steps = state.steps;
    updates = state.updates;
  }
  bool operator==(const State& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return same(parameters, other.parameters) && same(first, other.first) && same(second, other.second) &&
           steps == other.steps && updates == other.updates;
  }

  std::vector<float> parameters, first, second;
  std::uint64_t steps = 0, updates = 0;
};

State learned(const MlpSpec& spec, const Steps& steps, const LearnOptions& options, std::size_t threads, Isa isa) {
  Learner learner(spec, 11, threads, isa);
  State state(spec);
  learner.load(state.spans());
  for (int update = 0; update < 2; ++update) (void)learner.update(steps.experience, options);
  state.read(learner);
  return state;
}

double loss_at(const MlpSpec& spec, const Steps& steps, const LearnOptions& options, State& state) {
  Learner learner(spec, 0, 1);
  learner.load(state.spans());
  const LearnReport report = learner.update(steps.experience, options);
  return report.policy + static_cast<double>(options.value_coef) * report.value -
         static_cast<double>(options.entropy_coef) * report.entropy;
}

std::string message_of(Learner& learner, const Experience& experience, const LearnOptions& options) {
  try {
    (void)learner.update(experience, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

}  // namespace

TEST(learner_same_bits_on_any_threads_and_set) {
  for (const MlpSpec& spec : {kDiscrete, kContinuous, kLinear}) {
    const Steps steps(spec, 333);
    const LearnOptions options{.epochs = 2, .minibatches = 3, .value_clip = 0.3F, .entropy_coef = 0.01F};
    const State expected = learned(spec, steps, options, 1, Isa::scalar);
    CHECK(expected.steps == 12 && expected.updates == 2);
    for (const Isa isa : supported_isas()) {
      for (const std::size_t threads : {1U, 3U}) CHECK(learned(spec, steps, options, threads, isa) == expected);
    }
  }
}

TEST(learner_gradients_are_slopes_of_the_loss) {
  for (const MlpSpec& spec : {kDiscrete, kContinuous, kLinear}) {
    for (const bool ratio : {true, false}) {
      const Steps steps(spec, 90);
      LearnOptions options{.epochs = 1, .minibatches = 1, .ratio = ratio, .clip = kUnlimited, .entropy_coef = 0.1F};
      options.max_grad_norm = kUnlimited;
      options.beta1 = 0.0;  // the first moment is the gradient
      options.learning_rate = 0.0;
      const State gradient = learned(spec, steps, options, 1, best_isa());
      float largest = 0.0F;
      for (const float g : gradient.first) largest = std::max(largest, std::abs(g));
      State moved(spec);
      for (std::size_t i = 0; i < moved.parameters.size(); i += 7) {
        const float before = moved.parameters[i];
        moved.parameters[i] = before + 0.002F;
        const double above = loss_at(spec, steps, options, moved);
        moved.parameters[i] = before - 0.002F;
        const double below = loss_at(spec, steps, options, moved);
        moved.parameters[i] = before;
        CHECK(std::abs((above - below) / 0.004 - static_cast<double>(gradient.first[i])) <
              0.01 * static_cast<double>(largest));
      }
    }
  }
}

TEST(learner_refuses_bad_numbers_and_keeps_its_state) {
  Steps steps(kDiscrete, 200);
  Learner learner(kDiscrete, 0, 2);
  State before(kDiscrete);
  learner.load(before.spans());
  const auto refused = [&](const LearnOptions& options, const char* expected) {
    const std::string got = message_of(learner, steps.experience, options);
    State after(kDiscrete);
    after.read(learner);
    CHECK(got.find(expected) != std::string::npos);
    CHECK(after == before);
  };
  steps.obs[3 * 150 + 1] = std::nanf("");
  refused({}, "obs[150][1]: expected a finite number, got nan");
  steps.obs[3 * 150 + 1] = 0.0F;
  steps.choices[2 * 9 + 1] = 3;
  refused({}, "actions[9][1]: expected 0..2, got 3");
  steps.choices[2 * 9 + 1] = 0;
  steps.returns[199] = 1e30F;
  refused({}, "gradient is not finite");
  steps.returns[199] = 0.0F;
  refused({.minibatches = 201}, "minibatches: expected 1..200");
  refused({.clip = -1.0F}, "clip: expected a positive number");
  refused({.learning_rate = std::nan("")}, "learning_rate");
  CHECK(learner.update(steps.experience, {}).steps == 32);
}

TEST(learner_refuses_states_that_do_not_fit) {
  Learner learner(kLinear, 0, 1);
  State state(kLinear);
  learner.load(state.spans());
  State other(kDiscrete);
  CHECK_THROWS(Error, learner.load(other.spans()));
  State broken(kLinear);
  broken.second[2] = std::nanf("");
  CHECK_THROWS(Error, learner.load(broken.spans()));
  State after(kLinear);
  after.read(learner);
  CHECK(after == state);
}

TEST(learner_calls_from_two_threads_take_turns) {
  const Steps steps(kDiscrete, 100);
  Learner learner(kDiscrete, 11, 2);
  State state(kDiscrete);
  learner.load(state.spans());
  const auto call = [&] { (void)learner.update(steps.experience, {}); };
  std::thread other(call);
  call();
  other.join();
  state.read(learner);
  CHECK(state == learned(kDiscrete, steps, {}, 1, best_isa()));
}

TEST(learner_stops_at_a_divergence) {
  const Steps steps(kDiscrete, 256);
  Learner learner(kDiscrete, 0, 2);
  State state(kDiscrete);
  learner.load(state.spans());
  const LearnReport report = learner.update(steps.experience, {.target_kl = 1e-6F});
  state.read(learner);
  CHECK(report.stopped && report.steps == state.steps && report.steps < 32);
}

TEST(learner_shuffles_are_permutations) {
  for (const std::size_t n : {1U, 2U, 37U, 1000U}) {
    std::vector<std::uint32_t> order(n), again(n), other(n), next(n);
    learning::shuffle(order.data(), n, 5, 1, 0);
    learning::shuffle(again.data(), n, 5, 1, 0);
    learning::shuffle(other.data(), n, 5, 1, 1);
    learning::shuffle(next.data(), n, 5, 2, 0);
    CHECK(order == again);
    CHECK(n < 10 || (order != other && order != next && other != next));
    std::sort(order.begin(), order.end());
    for (std::uint32_t i = 0; i < n; ++i) CHECK(order[i] == i);
  }
  std::vector<int> first(5);
  for (std::uint64_t update = 0; update < 5000;
       ++update) {  // where sample 0 goes: 1000 times to each place, +- 4 sigma
    std::uint32_t order[5];
    learning::shuffle(order, 5, 5, update, 0);
    ++first[static_cast<std::size_t>(std::find(order, order + 5, 0U) - order)];
  }
  for (const int times : first) CHECK(times > 880 && times < 1120);
}

TEST(learner_packing_goes_there_and_back) {
  for (const MlpSpec& spec : {kDiscrete, kContinuous, kLinear}) {
    const learning::Packing packing(spec);
    State state(spec);
    std::vector<float> packed(packing.packed_size()), back(state.parameters.size());
    packing.pack(state.parameters.data(), packed.data());
    packing.unpack(packed.data(), back.data());
    CHECK(back == state.parameters);
    std::size_t covered = 0;
    for (const learning::Segment& segment : packing.segments()) {
      CHECK(segment.at == covered && segment.width % 16 == 0);
      covered += segment.width;
    }
    CHECK(covered == packing.packed_size());
  }
}
