// What a compiled environment looks like to native code: two C functions over a block of state that only they read.
// Nothing here knows how the functions were made; today numba compiles them from Python.
//
// Arrays are C-contiguous and indexed by the absolute number of an environment; a call touches the rows [first, last)
// of each and no others, so disjoint ranges may run on different threads at the same time.
#pragma once

#include <cstdint>

namespace headrace::rl {

/// What a step does with an environment whose episode has ended.
enum class Autoreset : std::int32_t {
  disabled = 0,   // nothing: such an environment must be reset before it is stepped again
  same_step = 1,  // final_obs = last observation of the episode, obs = first one of the next
  next_step = 2,  // obs = last observation; the next step resets, ignores its action and gives reward 0
};

/// Begin episode 0 of environments [first, last). `state` is a block for `n` environments, 64-byte aligned.
using EnvReset = void (*)(void* state, std::int64_t n, std::uint64_t seed, std::int64_t first, std::int64_t last,
                          float* obs);

/// Take one step. `actions` is int32[n], int32[n][k] or float32[n][k]; `obs` and `final_obs` are float32[n][obs_size];
/// rows of `final_obs` are written only where an episode ended, and only with Autoreset::same_step.
using EnvStep = void (*)(void* state, std::int64_t n, std::uint64_t seed, std::int64_t first, std::int64_t last,
                         const void* actions, float* obs, float* final_obs, float* reward, std::uint8_t* terminated,
                         std::uint8_t* truncated, std::int32_t autoreset);

/// Begin the next episode of those environments of [first, last) whose byte of `mask` (indexed like the rest) is not 0.
using EnvRestart = void (*)(void* state, std::int64_t n, std::uint64_t seed, std::int64_t first, std::int64_t last,
                            const std::uint8_t* mask, float* obs);

struct EnvFunctions {
  EnvReset reset = nullptr;
  EnvStep step = nullptr;
  EnvRestart restart = nullptr;
};

}  // namespace headrace::rl
