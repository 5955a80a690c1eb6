// What a learner does to its experience before it learns: look for numbers it must not learn from, put the steps into
// the order of each epoch, and measure the advantages of each minibatch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "headrace/rl/learner.hpp"

namespace headrace::rl::learning {

/// Samples [minibatch_begin(k), minibatch_begin(k + 1)) of an epoch's order make minibatch k; sizes differ by one at
/// most.
inline std::size_t minibatch_begin(std::size_t count, std::size_t minibatches, std::size_t k) {
  return count / minibatches * k + (k < count % minibatches ? k : count % minibatches);
}

/// What is wrong with samples [first, last), e.g. "returns[3]: expected a finite number, got nan"; empty if nothing is.
std::string fault_in(const Experience& experience, const MlpSpec& spec, std::size_t first, std::size_t last);

/// order[count] = a permutation that depends on the seed, the update and the epoch (Fisher & Yates; Durstenfeld 1964).
void shuffle(std::uint32_t* order, std::size_t count, std::uint64_t seed, std::uint64_t update, std::uint32_t epoch);

/// normalised = (advantage - shift) * scale has mean 0 and standard deviation 1 (of a sample: divided by n - 1).
struct Normal {
  float shift = 0.0F;
  float scale = 1.0F;
};
Normal normal_of(const float* values, const std::uint32_t* order, std::size_t count);

/// 1 - var(returns - values) / var(returns); NaN if the returns are all the same.
double explained_variance(const float* returns, const float* values, std::size_t count);

}  // namespace headrace::rl::learning
