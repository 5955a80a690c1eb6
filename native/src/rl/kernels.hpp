// The kernels that a Policy and a Collector call, as one table for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "headrace/rl/policy.hpp"

namespace headrace::rl {

/// What drawing an action needs beside the logits: [outputs][kTile] in, rows of `count` environments out.
struct Sampling {
  const float* logits;
  std::size_t count;
  const std::size_t* sizes;  // of each softmax
  std::size_t actions;       // softmaxes, or dimensions of the Gaussian
  const float* log_std;      // gaussian heads only
  Draw draw;
};

/// Sums of (x - pivot) and (x - pivot)^2 for each place; `pivot` is nullptr where nothing is to be summed.
struct Sums {
  const float* pivot;
  double* sums;
  double* squares;
};

struct Kernels {
  /// obs[count][size] -> x[size][kTile], 0 from `count` on up to the next multiple of 16.
  void (*load)(const float* obs, std::size_t count, std::size_t size, float* x);
  /// y = activation(weight x + bias) for the first `vectors` * 16 environments of a tile.
  void (*layer)(const float* parameters, const Layer& layer, Activation activation, std::size_t vectors, const float* x,
                float* y);
  void (*sample_categorical)(const Sampling& in, std::int32_t* actions, float* log_probs);
  void (*sample_gaussian)(const Sampling& in, float* actions, float* log_probs);
  /// x = clip((x - mean) * scale, -limit, limit) in place for `count` numbers, after adding x to `sums`.
  void (*normalise)(float* x, std::size_t count, const float* mean, const float* scale, float limit, const Sums& sums);
  /// totals += rewards; discounted = discounted * gamma + rewards, summed up 16 by 16 unless sums.pivot is nullptr.
  void (*add_rewards)(const float* rewards, std::size_t count, double gamma, double* totals, double* discounted,
                      const Sums& sums);
};

extern const Kernels kKernelsScalar;
#if defined(__x86_64__)
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;
#elif defined(__aarch64__)
extern const Kernels kKernelsNeon;
#endif

const Kernels& kernels(Isa isa);

}  // namespace headrace::rl
