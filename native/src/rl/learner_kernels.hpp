// What a Learner and its kernels agree on: where packed weights and scratch memory lie, and one table of kernels for
// each instruction set. Plain data: files compiled for newer processors include it.
//
// Parameters are packed for the kernels: rows padded with zeros to multiples of 16 floats. A hidden layer lies
// transposed, weight[in][wide out] with the bias as row `in`, and a second time as mirror[out][wide in], which the
// backward pass reads. The last layer lies weight[out][wide in], its bias as one more row. Padding has no gradient and
// stays 0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "headrace/rl/learner.hpp"
#include "headrace/rl/policy.hpp"

namespace headrace::rl::learning {

inline constexpr std::size_t kRows = 64;  // samples of a tile: activations of two hidden layers of 64 fill an L1 cache

namespace {  // a copy for each file: none compiled for a newer processor is to serve the others

constexpr std::size_t wide(std::size_t n) {
  return (n + 15) / 16 * 16;
}

}  // namespace

struct PackedLayer {
  std::size_t in, out;
  std::size_t weight;  // offsets in the packed vector
  std::size_t bias;
  std::size_t mirror;      // offset in the mirror; hidden layers only
  std::size_t activation;  // offset in Scratch::hidden of [kRows][wide(out)]; hidden layers only
};

struct PackedNet {
  const PackedLayer* layers;
  std::size_t count;  // with the last
};

/// A stretch of the packed vector that one thread adds up and steps.
struct Segment {
  std::size_t at, width;  // width: a multiple of 16
  std::size_t mirror;     // where its first number goes in the mirror …
  std::size_t stride;     // … and how far apart its numbers lie there; 0: not mirrored
};

struct Plan {
  PackedNet actor, critic;
  std::size_t obs_size;
  std::size_t actions;       // numbers in an action
  const std::size_t* sizes;  // of each softmax
  std::size_t heads;         // softmaxes
  std::size_t outputs;       // of the actor
  std::size_t log_std;       // offset; gaussian heads only
  HeadKind head;
  Activation activation;
};

/// What a minibatch's samples are weighed with.
struct Terms {
  float advantage_shift, advantage_scale;  // normalised = (advantage - shift) * scale
  float weight;                            // 1 / samples in the minibatch
  float clip, value_clip;
  float value_coef, entropy_coef;
  bool ratio;
};

/// LossSums over samples.
struct LossSums {
  double policy, value, entropy, kl, clipped;
};

/// Scratch memory of one thread; a tile's numbers lie [row][unit] in x and hidden, [unit][row] elsewhere.
struct Scratch {
  float* x;          // [kRows][wide(obs_size)]
  float* hidden;     // activations, which the backward pass turns into gradients
  float* out;        // [outputs][kRows]
  float* d_out;      // [outputs][kRows]
  float* probs;      // [outputs][kRows]
  float* scaled;     // [outputs][kRows]: log-probabilities, or distances from the mean
  float* actions;    // [actions][kRows]
  float* log_probs;  // [kRows], as are the following
  float* advantages;
  float* values;
  float* returns;
  const float* zeros;  // as many as the widest layer
};

struct AdamStep {
  float scale;         // of gradients, to clip their norm
  float keep1, keep2;  // beta1, beta2 …
  float take1, take2;  // … and 1 - beta
  float rate;          // learning rate / (1 - beta1^t)
  float root;          // 1 / sqrt(1 - beta2^t)
  float epsilon;
};

struct LearnerKernels {
  /// Add the gradient of `count` samples, `order` of the experience, to `gradients` (packed) and to `sums`.
  void (*gradients)(const Plan& plan, const float* packed, const float* mirror, const Experience& experience,
                    const std::uint32_t* order, std::size_t count, const Terms& terms, const Scratch& scratch,
                    float* gradients, LossSums& sums);
  /// Add `slices` vectors that lie `stride` apart into the first of them; gives the sum of squares.
  double (*add_up)(const Segment& segment, std::size_t slices, std::size_t stride, float* gradients);
  void (*step)(const Segment& segment, const AdamStep& adam, const float* gradients, float* packed, float* first,
               float* second, float* mirror);
};

extern const LearnerKernels kLearnerScalar;
#if defined(__x86_64__)
extern const LearnerKernels kLearnerAvx2;
extern const LearnerKernels kLearnerAvx512;
#elif defined(__aarch64__)
extern const LearnerKernels kLearnerNeon;
#endif

}  // namespace headrace::rl::learning
