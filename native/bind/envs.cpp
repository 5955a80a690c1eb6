// Batches of compiled environments: the functions that numba made, called for all shards at once without the GIL.
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "bind.hpp"
#include "headrace/error.hpp"
#include "headrace/rl/env.hpp"
#include "headrace/team.hpp"

namespace headrace::bind {
namespace {

using rl::EnvReset;
using rl::EnvStep;
using EnvRestart = void (*)(void* state, std::int64_t n, std::uint64_t seed, std::int64_t first, std::int64_t last,
                            const std::uint8_t* mask, float* obs);

template <class T>
using Rows = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

/// What Python hands over has been checked there (`headrace.rl.envs.batch`); here only the numbers of rows are.
class EnvTeam {
 public:
  EnvTeam(std::uintptr_t reset, std::uintptr_t restart, std::uintptr_t step, std::int64_t n, std::size_t threads)
      : reset_(reinterpret_cast<EnvReset>(reset)),
        restart_(reinterpret_cast<EnvRestart>(restart)),
        step_(reinterpret_cast<EnvStep>(step)),
        n_(n),
        team_(threads) {}

  void reset(const Rows<std::uint8_t>& state, std::uint64_t seed, const Rows<float>& obs) {
    expect_rows(obs);
    in_shards([&](std::int64_t first, std::int64_t last) { reset_(state.data(), n_, seed, first, last, obs.data()); });
  }

  void restart(const Rows<std::uint8_t>& state, std::uint64_t seed, const Rows<const std::uint8_t>& mask,
               const Rows<float>& obs) {
    expect_rows(mask);
    expect_rows(obs);
    in_shards([&](std::int64_t first, std::int64_t last) {
      restart_(state.data(), n_, seed, first, last, mask.data(), obs.data());
    });
  }

  void step(const Rows<std::uint8_t>& state, std::uint64_t seed, nb::ndarray<nb::ro, nb::c_contig> actions,
            const Rows<float>& obs, const Rows<float>& final_obs, const Rows<float>& reward,
            const Rows<std::uint8_t>& terminated, const Rows<std::uint8_t>& truncated, std::int32_t autoreset) {
    expect_rows(actions);
    expect_rows(obs);
    expect_rows(final_obs);
    expect_rows(reward);
    expect_rows(terminated);
    expect_rows(truncated);
    in_shards([&](std::int64_t first, std::int64_t last) {
      step_(state.data(), n_, seed, first, last, actions.data(), obs.data(), final_obs.data(), reward.data(),
            terminated.data(), truncated.data(), autoreset);
    });
  }

  [[nodiscard]] std::size_t threads() const { return team_.size(); }

 private:
  template <class Any>
  void expect_rows(const Any& array) const {
    if (array.ndim() < 1 || array.shape(0) != static_cast<std::size_t>(n_))
      throw Error(ErrorKind::invalid_input, "environments: an array has not one row per environment");
  }

  /// call(first, last) on every thread, for an equal share of the environments in whole cache lines of every array.
  template <class Call>
  void in_shards(Call call) {
    constexpr std::int64_t kLine = 64;
    const auto size = static_cast<std::int64_t>(team_.size());
    const std::int64_t share = ((n_ + size - 1) / size + kLine - 1) / kLine * kLine;
    without_gil([&] {
      team_.run([&](std::size_t rank) {
        const std::int64_t first = static_cast<std::int64_t>(rank) * share;
        if (first < n_) call(first, std::min(n_, first + share));
      });
      return true;
    });
  }

  EnvReset reset_;
  EnvRestart restart_;
  EnvStep step_;
  std::int64_t n_;
  Team team_;
};

}  // namespace

void bind_envs(nb::module_& m) {
  nb::class_<EnvTeam>(m, "EnvTeam",
                      "Threads that run the three functions of a compiled environment over their shards of a batch. "
                      "One call at a time; the addresses must stay good.")
      .def(nb::init<std::uintptr_t, std::uintptr_t, std::uintptr_t, std::int64_t, std::size_t>(), nb::arg("reset"),
           nb::arg("restart"), nb::arg("step"), nb::arg("n"), nb::arg("threads"))
      .def("reset", &EnvTeam::reset, nb::arg("state"), nb::arg("seed"), nb::arg("obs"))
      .def("restart", &EnvTeam::restart, nb::arg("state"), nb::arg("seed"), nb::arg("mask"), nb::arg("obs"))
      .def("step", &EnvTeam::step, nb::arg("state"), nb::arg("seed"), nb::arg("actions"), nb::arg("obs"),
           nb::arg("final_obs"), nb::arg("reward"), nb::arg("terminated"), nb::arg("truncated"), nb::arg("autoreset"))
      .def_prop_ro("threads", &EnvTeam::threads);
}

}  // namespace headrace::bind
