// Policies, weights on their way, rollouts and returns.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bind.hpp"
#include "headrace/error.hpp"
#include "headrace/rl/collector.hpp"
#include "headrace/rl/policy.hpp"
#include "headrace/rl/returns.hpp"
#include "headrace/rl/weights.hpp"

namespace headrace::bind {
namespace {

using namespace headrace::rl;

template <class T, int dimensions>
using Array = nb::ndarray<T, nb::ndim<dimensions>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<std::uint8_t, nb::c_contig, nb::device::cpu>;
using Flat = Array<const float, 1>;
using Table = Array<const float, 2>;
using Flags = Array<const std::uint8_t, 2>;

template <class Any>
auto span_of(const Any& array) {
  return std::span(array.data(), array.size());
}

void expect(bool holds, const char* what) {
  if (!holds) throw Error(ErrorKind::invalid_input, what);
}

Isa isa_of(const std::string& name) {
  return name.empty() ? best_isa() : choose_isa(name);
}

MlpSpec spec_of(std::size_t obs_size, std::vector<std::size_t> hidden, const std::string& activation, bool gaussian,
                std::vector<std::size_t> sizes) {
  return {obs_size,
          std::move(hidden),
          activation == "relu" ? Activation::relu : Activation::tanh,
          {gaussian ? HeadKind::gaussian : HeadKind::categorical, std::move(sizes)}};
}

/// fn(first, count) for each tile of `rows` rows.
template <class Fn>
void in_tiles(std::size_t rows, Fn fn) {
  for (std::size_t first = 0; first < rows; first += kTile) fn(first, std::min(kTile, rows - first));
}

void forward(const Policy& policy, const Flat& parameters, const Table& obs, const Array<float, 2>& logits,
             const Array<float, 1>& values) {
  const std::size_t outputs = policy.spec().head.outputs();
  expect(parameters.size() == policy.layout().size && obs.shape(1) == policy.spec().obs_size &&
             logits.shape(0) == obs.shape(0) && logits.shape(1) == outputs && values.size() == obs.shape(0),
         "policy: arrays do not fit each other");
  const nb::gil_scoped_release unlocked;
  PolicyScratch scratch(policy.layout());
  in_tiles(obs.shape(0), [&](std::size_t first, std::size_t count) {
    policy.load(obs.data() + first * policy.spec().obs_size, count, scratch);
    policy.actor(parameters.data(), count, scratch);
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t k = 0; k < outputs; ++k) {
        logits.data()[(first + i) * outputs + k] = scratch.logits[k * kTile + i];
      }
    }
    policy.critic(parameters.data(), count, scratch, values.data() + first);
  });
}

void act(const Policy& policy, const Flat& parameters, const Table& obs, std::uint64_t seed, std::uint64_t first_env,
         std::uint64_t step, bool greedy, const Bytes& actions, const Array<float, 1>& log_probs,
         const Array<float, 1>& values) {
  const std::size_t width = policy.spec().head.actions() * 4;
  const std::size_t rows = obs.shape(0);
  expect(parameters.size() == policy.layout().size && obs.shape(1) == policy.spec().obs_size &&
             actions.size() == rows * width && log_probs.size() == rows && values.size() == rows,
         "policy: arrays do not fit each other");
  const nb::gil_scoped_release unlocked;
  PolicyScratch scratch(policy.layout());
  in_tiles(rows, [&](std::size_t first, std::size_t count) {
    policy.load(obs.data() + first * policy.spec().obs_size, count, scratch);
    policy.actor(parameters.data(), count, scratch);
    policy.sample(parameters.data(), count, {seed, first_env + first, step, greedy}, scratch,
                  actions.data() + first * width, log_probs.data() + first);
    policy.critic(parameters.data(), count, scratch, values.data() + first);
  });
}

BadValues bad_values_of(const std::string& name) {
  if (name == "stop") return BadValues::stop;
  if (name == "drop") return BadValues::drop;
  if (name == "clip") return BadValues::clip;
  throw Error(ErrorKind::invalid_input, "bad_values: expected stop, drop or clip, got " + name);
}

/// The address of a C function, as Python holds it.
template <class Function>
Function function_at(std::uintptr_t address) {
  return reinterpret_cast<Function>(address);  // NOLINT: that is what addresses of functions come as
}

using Matrix = Array<float, 2>;
using Marks = Array<std::uint8_t, 2>;

/// "complete", "cancelled" (also when the time is up) or "fault".
const char* collect(Collector& collector, const Flat& parameters, const Array<float, 3>& obs, const Bytes& actions,
                    const Matrix& log_probs, const Matrix& values, const Matrix& rewards, const Marks& terminated,
                    const Marks& truncated, const Matrix& final_values, const Array<float, 1>& last_values,
                    std::optional<double> timeout_s) {
  const CollectorOptions& options = collector.options();
  const MlpSpec& spec = collector.policy().spec();
  const std::size_t cells = options.steps * options.envs;
  const auto fits = [&](const auto& array) {
    return array.shape(0) == options.steps && array.shape(1) == options.envs;
  };
  expect(fits(obs) && obs.shape(2) == spec.obs_size && actions.size() == cells * spec.head.actions() * 4 &&
             fits(log_probs) && fits(values) && fits(rewards) && fits(terminated) && fits(truncated) &&
             fits(final_values) && last_values.size() == options.envs,
         "collector: the trajectory does not fit");
  const TrajectoryArrays out{obs.data(),       actions.data(),      log_probs.data(),
                             values.data(),    rewards.data(),      terminated.data(),
                             truncated.data(), final_values.data(), last_values.data()};
  bool signalled = false;
  const Deadline deadline(timeout_s);
  const auto interrupted = [&] {  // runs on this thread
    const nb::gil_scoped_acquire locked;
    signalled = signalled || PyErr_CheckSignals() != 0;
    return signalled || deadline.passed();
  };
  const Outcome outcome = without_gil([&] { return collector.collect(span_of(parameters), out, interrupted); });
  if (signalled) throw nb::python_error();
  switch (outcome) {
    case Outcome::complete:
      return "complete";
    case Outcome::cancelled:
      return "cancelled";
    case Outcome::fault:
      return "fault";
  }
  return "";
}

template <class T>
nb::object view(nb::handle owner, T* data, std::size_t size) {
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {size}, owner));
}

/// Name -> array over the collector's own memory, no copy.
nb::dict state_views(nb::handle self) {
  CollectorState& s = nb::cast<Collector&>(self).state();
  nb::dict views;
  views["env"] = view(self, reinterpret_cast<std::uint8_t*>(s.env.data()), s.env.size());
  views["obs"] = view(self, s.obs.data(), s.obs.size());
  views["totals"] = view(self, s.totals.data(), s.totals.size());
  views["discounted"] = view(self, s.discounted.data(), s.discounted.size());
  views["began"] = view(self, s.began.data(), s.began.size());
  views["seed"] = view(self, &s.seed, 1);
  views["step"] = view(self, &s.step, 1);
  views["obs_count"] = view(self, &s.obs_moments.count, 1);
  views["obs_mean"] = view(self, s.obs_moments.mean.data(), s.obs_moments.mean.size());
  views["obs_m2"] = view(self, s.obs_moments.m2.data(), s.obs_moments.m2.size());
  views["return_count"] = view(self, &s.return_moments.count, 1);
  views["return_mean"] = view(self, s.return_moments.mean.data(), 1);
  views["return_m2"] = view(self, s.return_moments.m2.data(), 1);
  return views;
}

nb::object fault_of(const Collector& collector) {
  if (!collector.fault()) return nb::none();
  const Fault& fault = *collector.fault();
  nb::dict found;
  found["step"] = fault.step;
  found["episode_step"] = fault.episode_step;
  found["env"] = fault.env;
  found["in_reward"] = fault.in_reward;
  found["index"] = fault.index;
  found["value"] = fault.value;
  found["action"] = fault.action;
  return found;
}

Steps steps_of(const Table& rewards, const Table& values, const Flags& terminated, const Flags& truncated,
               const Table& final_values, const Flat& last_values) {
  const std::size_t steps = rewards.shape(0);
  const std::size_t envs = rewards.shape(1);
  const auto fits = [&](const auto& array) { return array.shape(0) == steps && array.shape(1) == envs; };
  expect(fits(values) && fits(terminated) && fits(truncated) && fits(final_values) && last_values.size() == envs,
         "returns: arrays do not fit each other");
  return {steps,
          envs,
          rewards.data(),
          values.data(),
          terminated.data(),
          truncated.data(),
          final_values.data(),
          last_values.data()};
}

void bind_policy(nb::module_& m) {
  nb::class_<Policy>(m, "MlpPolicy")
      .def(
          "__init__",
          [](Policy* self, std::size_t obs_size, std::vector<std::size_t> hidden, const std::string& activation,
             bool gaussian, std::vector<std::size_t> sizes, const std::string& isa) {
            new (self)
                Policy(spec_of(obs_size, std::move(hidden), activation, gaussian, std::move(sizes)), isa_of(isa));
          },
          nb::arg("obs_size"), nb::arg("hidden"), nb::arg("activation"), nb::arg("gaussian"), nb::arg("sizes"),
          nb::arg("isa"))
      .def_prop_ro("n_parameters", [](const Policy& policy) { return policy.layout().size; })
      .def("forward", &forward, nb::arg("parameters"), nb::arg("obs"), nb::arg("logits"), nb::arg("values"))
      .def("act", &act, nb::arg("parameters"), nb::arg("obs"), nb::arg("seed"), nb::arg("first_env"), nb::arg("step"),
           nb::arg("greedy"), nb::arg("actions"), nb::arg("log_probs"), nb::arg("values"));
  nb::class_<Weights>(m, "Weights")
      .def(nb::init<std::size_t>(), nb::arg("size"))
      .def(
          "publish", [](Weights& weights, const Flat& flat) { return weights.publish(span_of(flat)); }, nb::arg("flat"))
      .def(
          "read_into",
          [](const Weights& weights, const Array<float, 1>& flat) {
            return without_gil([&] { return weights.read(span_of(flat)); });
          },
          nb::arg("flat"))
      .def_prop_ro("version", &Weights::version)
      .def("__len__", &Weights::size);
}

void bind_collector(nb::module_& m) {
  nb::class_<Collector>(m, "Collector")
      .def(
          "__init__",
          [](Collector* self, std::size_t obs_size, std::vector<std::size_t> hidden, const std::string& activation,
             bool gaussian, std::vector<std::size_t> sizes, std::uintptr_t reset, std::uintptr_t step,
             std::uintptr_t restart, std::size_t state_bytes, std::size_t envs, std::size_t steps, std::size_t threads,
             std::size_t shard, bool normalise_obs, bool normalise_reward, bool update_moments, bool greedy,
             float obs_limit, float reward_limit, double gamma, double epsilon, const std::string& bad_values,
             std::vector<float> action_low, std::vector<float> action_high, const std::string& isa) {
            CollectorOptions options;
            options.envs = envs;
            options.steps = steps;
            options.threads = threads;
            options.shard = shard;
            options.normalise_obs = normalise_obs;
            options.normalise_reward = normalise_reward;
            options.update_moments = update_moments;
            options.greedy = greedy;
            options.obs_limit = obs_limit;
            options.reward_limit = reward_limit;
            options.gamma = gamma;
            options.epsilon = epsilon;
            options.bad_values = bad_values_of(bad_values);
            options.action_low = std::move(action_low);
            options.action_high = std::move(action_high);
            new (self)
                Collector(spec_of(obs_size, std::move(hidden), activation, gaussian, std::move(sizes)),
                          {function_at<EnvReset>(reset), function_at<EnvStep>(step), function_at<EnvRestart>(restart)},
                          state_bytes, std::move(options), isa_of(isa));
          },
          nb::arg("obs_size"), nb::arg("hidden"), nb::arg("activation"), nb::arg("gaussian"), nb::arg("sizes"),
          nb::arg("reset"), nb::arg("step"), nb::arg("restart"), nb::arg("state_bytes"), nb::arg("envs"),
          nb::arg("steps"), nb::arg("threads"), nb::arg("shard"), nb::arg("normalise_obs"), nb::arg("normalise_reward"),
          nb::arg("update_moments"), nb::arg("greedy"), nb::arg("obs_limit"), nb::arg("reward_limit"), nb::arg("gamma"),
          nb::arg("epsilon"), nb::arg("bad_values"), nb::arg("action_low"), nb::arg("action_high"), nb::arg("isa"))
      .def(
          "reset",
          [](Collector& collector, std::uint64_t seed) {
            without_gil([&] {
              collector.reset(seed);
              return true;
            });
          },
          nb::arg("seed"))
      .def("collect", &collect, nb::arg("parameters"), nb::arg("obs"), nb::arg("actions"), nb::arg("log_probs"),
           nb::arg("values"), nb::arg("rewards"), nb::arg("terminated"), nb::arg("truncated"), nb::arg("final_values"),
           nb::arg("last_values"), nb::arg("timeout_s").none())
      .def("cancel", &Collector::cancel)
      .def("clear_cancel", &Collector::clear_cancel)
      .def(
          "episodes",
          [](const Collector& collector, const Array<double, 1>& totals, const Array<std::int64_t, 1>& lengths) {
            const std::vector<Episode>& episodes = collector.episodes();
            expect(totals.size() == episodes.size() && lengths.size() == episodes.size(),
                   "collector: expected room for n_episodes");
            for (std::size_t i = 0; i < episodes.size(); ++i) {
              totals.data()[i] = episodes[i].total;
              lengths.data()[i] = static_cast<std::int64_t>(episodes[i].length);
            }
          },
          nb::arg("totals"), nb::arg("lengths"))
      .def_prop_ro("n_episodes", [](const Collector& collector) { return collector.episodes().size(); })
      .def_prop_ro("n_faults", &Collector::faults)
      .def_prop_ro("fault", &fault_of)
      .def("state_views", &state_views)
      .def("resume", &Collector::resume);
}

void bind_returns(nb::module_& m) {
  m.def(
      "gae",
      [](const Table& rewards, const Table& values, const Flags& terminated, const Flags& truncated,
         const Table& final_values, const Flat& last_values, float gamma, float lambda, const Matrix& advantages,
         const Matrix& returns) {
        const Steps in = steps_of(rewards, values, terminated, truncated, final_values, last_values);
        expect(advantages.size() == rewards.size() && returns.size() == rewards.size(), "returns: outputs do not fit");
        const nb::gil_scoped_release unlocked;
        gae(in, gamma, lambda, 0, in.envs, advantages.data(), returns.data());
      },
      nb::arg("rewards"), nb::arg("values"), nb::arg("terminated"), nb::arg("truncated"), nb::arg("final_values"),
      nb::arg("last_values"), nb::arg("gamma"), nb::arg("lam"), nb::arg("advantages"), nb::arg("returns"));
  m.def(
      "vtrace",
      [](const Table& rewards, const Table& values, const Flags& terminated, const Flags& truncated,
         const Table& final_values, const Flat& last_values, const Table& log_rhos, float gamma, float lambda,
         float clip_rho, float clip_c, float clip_pg_rho, const Matrix& targets, const Matrix& advantages) {
        const Steps in = steps_of(rewards, values, terminated, truncated, final_values, last_values);
        expect(log_rhos.size() == rewards.size() && targets.size() == rewards.size() &&
                   advantages.size() == rewards.size(),
               "returns: arrays do not fit each other");
        const nb::gil_scoped_release unlocked;
        vtrace(in, log_rhos.data(), {gamma, lambda, clip_rho, clip_c, clip_pg_rho}, 0, in.envs, targets.data(),
               advantages.data());
      },
      nb::arg("rewards"), nb::arg("values"), nb::arg("terminated"), nb::arg("truncated"), nb::arg("final_values"),
      nb::arg("last_values"), nb::arg("log_rhos"), nb::arg("gamma"), nb::arg("lam"), nb::arg("clip_rho"),
      nb::arg("clip_c"), nb::arg("clip_pg_rho"), nb::arg("targets"), nb::arg("advantages"));
  m.def(
      "n_step",
      [](const Table& rewards, const Table& values, const Flags& terminated, const Flags& truncated,
         const Table& final_values, const Flat& last_values, float gamma, std::size_t n, const Matrix& returns) {
        const Steps in = steps_of(rewards, values, terminated, truncated, final_values, last_values);
        expect(returns.size() == rewards.size(), "returns: outputs do not fit");
        const nb::gil_scoped_release unlocked;
        n_step(in, gamma, n, 0, in.envs, returns.data());
      },
      nb::arg("rewards"), nb::arg("values"), nb::arg("terminated"), nb::arg("truncated"), nb::arg("final_values"),
      nb::arg("last_values"), nb::arg("gamma"), nb::arg("n"), nb::arg("returns"));
}

}  // namespace

void bind_rl(nb::module_& m) {
  bind_policy(m);
  bind_collector(m);
  bind_returns(m);
}

}  // namespace headrace::bind
