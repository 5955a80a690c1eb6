#include "headrace/rl/learner.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bind.hpp"
#include "headrace/error.hpp"

namespace headrace::bind {
namespace {

using rl::Experience;
using rl::Learner;
using rl::LearnOptions;
using rl::LearnReport;
using rl::LearnState;

using Floats = nb::ndarray<float, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Column = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Actions = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void make(Learner* self, std::size_t obs_size, const std::vector<std::size_t>& hidden, const std::string& activation,
          bool gaussian, const std::vector<std::size_t>& sizes, std::uint64_t seed, std::size_t threads,
          const std::string& isa) {
  if (activation != "tanh" && activation != "relu") {
    throw Error(ErrorKind::invalid_input, "activation: expected tanh or relu, got " + activation);
  }
  new (self) Learner({.obs_size = obs_size,
                      .hidden = hidden,
                      .activation = activation == "tanh" ? rl::Activation::tanh : rl::Activation::relu,
                      .head = {gaussian ? rl::HeadKind::gaussian : rl::HeadKind::categorical, sizes}},
                     seed, threads, isa.empty() ? best_isa() : choose_isa(isa));
}

std::span<float> span_of(const Floats& array) {
  return {array.data(), array.size()};
}

void load(Learner& self, const Floats& parameters, const Floats& first, const Floats& second, std::uint64_t steps,
          std::uint64_t updates) {
  const LearnState state{span_of(parameters), span_of(first), span_of(second), steps, updates};
  without_gil([&] {
    self.load(state);
    return true;
  });
}

nb::tuple save(const Learner& self, const Floats& parameters, const Floats& first, const Floats& second) {
  LearnState state{span_of(parameters), span_of(first), span_of(second), 0, 0};
  without_gil([&] {
    self.save(state);
    return true;
  });
  return nb::make_tuple(state.steps, state.updates);
}

void expect(const char* name, std::size_t got, std::size_t expected) {
  if (got == expected) return;
  throw Error(ErrorKind::invalid_input, std::string(name) + ": expected a length of " + std::to_string(expected) +
                                            ", got " + std::to_string(got));
}

nb::dict update(Learner& self, const Rows& obs, const Actions& actions, const Column& log_probs, const Column& values,
                const Column& advantages, const Column& returns, std::size_t epochs, std::size_t minibatches,
                bool ratio, float clip, float value_clip, bool normalise_advantages, float value_coef,
                float entropy_coef, float max_grad_norm, float target_kl, double learning_rate, double beta1,
                double beta2, double epsilon) {
  const std::size_t count = obs.shape(0);
  const rl::Head& head = self.spec().head;
  const bool gaussian = head.kind == rl::HeadKind::gaussian;
  expect("obs, axis 1", obs.shape(1), self.spec().obs_size);
  expect("actions, axis 1", actions.shape(1), head.actions());
  if (actions.dtype() != (gaussian ? nb::dtype<float>() : nb::dtype<std::int32_t>())) {
    throw Error(ErrorKind::invalid_input, std::string("actions: expected ") + (gaussian ? "float32" : "int32"));
  }
  expect("actions", actions.shape(0), count);
  expect("log_probs", log_probs.size(), count);
  expect("values", values.size(), count);
  expect("advantages", advantages.size(), count);
  expect("returns", returns.size(), count);
  const Experience experience{count,         obs.data(),        actions.data(), log_probs.data(),
                              values.data(), advantages.data(), returns.data()};
  const LearnOptions options{.epochs = epochs,
                             .minibatches = minibatches,
                             .ratio = ratio,
                             .clip = clip,
                             .value_clip = value_clip,
                             .normalise_advantages = normalise_advantages,
                             .value_coef = value_coef,
                             .entropy_coef = entropy_coef,
                             .max_grad_norm = max_grad_norm,
                             .target_kl = target_kl,
                             .learning_rate = learning_rate,
                             .beta1 = beta1,
                             .beta2 = beta2,
                             .epsilon = epsilon};
  const LearnReport report = without_gil([&] { return self.update(experience, options); });
  nb::dict losses;
  losses["policy"] = report.policy;
  losses["value"] = report.value;
  losses["entropy"] = report.entropy;
  losses["approx_kl"] = report.approx_kl;
  losses["clip_fraction"] = report.clip_fraction;
  losses["grad_norm"] = report.grad_norm;
  losses["explained_variance"] = report.explained_variance;
  losses["steps"] = report.steps;
  losses["stopped"] = report.stopped;
  return losses;
}

}  // namespace

void bind_learner(nb::module_& m) {
  nb::class_<Learner>(m, "Learner")
      .def("__init__", &make, nb::arg("obs_size"), nb::arg("hidden"), nb::arg("activation"), nb::arg("gaussian"),
           nb::arg("sizes"), nb::arg("seed"), nb::arg("threads"), nb::arg("isa") = "")
      .def("load", &load, nb::arg("parameters").noconvert(), nb::arg("first_moments").noconvert(),
           nb::arg("second_moments").noconvert(), nb::arg("steps"), nb::arg("updates"),
           "Take over the state of an optimiser.")
      .def("save", &save, nb::arg("parameters").noconvert(), nb::arg("first_moments").noconvert(),
           nb::arg("second_moments").noconvert(),
           nb::sig("def save(self, parameters: numpy.typing.NDArray[numpy.float32], first_moments: "
                   "numpy.typing.NDArray[numpy.float32], second_moments: numpy.typing.NDArray[numpy.float32]) -> "
                   "tuple[int, int]"),
           "Write the state into three arrays float32[n_parameters]; gives (steps, updates).")
      .def("update", &update, nb::arg("obs").noconvert(), nb::arg("actions").noconvert(),
           nb::arg("log_probs").noconvert(), nb::arg("values").noconvert(), nb::arg("advantages").noconvert(),
           nb::arg("returns").noconvert(), nb::kw_only(), nb::arg("epochs"), nb::arg("minibatches"), nb::arg("ratio"),
           nb::arg("clip"), nb::arg("value_clip"), nb::arg("normalise_advantages"), nb::arg("value_coef"),
           nb::arg("entropy_coef"), nb::arg("max_grad_norm"), nb::arg("target_kl"), nb::arg("learning_rate"),
           nb::arg("beta1"), nb::arg("beta2"), nb::arg("epsilon"),
           nb::sig("def update(self, obs: numpy.typing.NDArray[numpy.float32], actions: "
                   "numpy.typing.NDArray[numpy.int32] | numpy.typing.NDArray[numpy.float32], log_probs: "
                   "numpy.typing.NDArray[numpy.float32], values: numpy.typing.NDArray[numpy.float32], advantages: "
                   "numpy.typing.NDArray[numpy.float32], returns: numpy.typing.NDArray[numpy.float32], *, epochs: int, "
                   "minibatches: int, ratio: bool, clip: float, value_clip: float, normalise_advantages: bool, "
                   "value_coef: float, entropy_coef: float, max_grad_norm: float, target_kl: float, learning_rate: "
                   "float, beta1: float, beta2: float, epsilon: float) -> dict[str, typing.Any]"),
           "Run all epochs over obs[count][D], actions[count][K] and columns of `count`, without the GIL; gives\nmean "
           "losses. An error leaves the parameters as they were.");
}

}  // namespace headrace::bind
