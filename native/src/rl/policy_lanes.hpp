// The policy's kernels written once over Lanes; each kernels_<isa>.cpp includes this after choosing its flags.
#pragma once

#include "headrace/rl/lanes_math.hpp"
#include "headrace/rl/philox.hpp"
#include "kernels.hpp"

namespace headrace::rl {
namespace {

// Units x vectors of a register tile: as many accumulators as hide the latency of fma and fit into the registers.
#if defined(HEADRACE_LANES_SCALAR)
inline constexpr std::size_t kUnits = 4;
inline constexpr std::size_t kVectors = 1;
#elif defined(__AVX512F__)
inline constexpr std::size_t kUnits = 8;
inline constexpr std::size_t kVectors = 2;
#else
inline constexpr std::size_t kUnits = 4;
inline constexpr std::size_t kVectors = 1;
#endif

inline void load_tile(const float* obs, std::size_t count, std::size_t size, float* x) {
  for (std::size_t first = 0; first < count; first += kLanes) {
    const std::size_t n = count - first < kLanes ? count - first : kLanes;
    for (std::size_t k = 0; k < size; ++k) {
      float* to = x + k * kTile + first;
      for (std::size_t i = 0; i < n; ++i) to[i] = obs[(first + i) * size + k];
      for (std::size_t i = n; i < kLanes; ++i) to[i] = 0.0F;
    }
  }
}

template <Activation activation>
inline Lanes activated(Lanes x) {
  if constexpr (activation == Activation::tanh) return fast_tanh(x);
  if constexpr (activation == Activation::relu) return max(zero(), x);  // max gives x if it is NaN
  return x;
}

/// `units` rows of the weights times `vectors` vectors of the tile.
template <Activation activation, std::size_t units, std::size_t vectors>
inline void register_tile(const float* weight, const float* bias, std::size_t in, const float* x, float* y) {
  Lanes sums[units][vectors];
  for (std::size_t u = 0; u < units; ++u) {
    for (std::size_t v = 0; v < vectors; ++v) sums[u][v] = broadcast(bias[u]);
  }
  for (std::size_t k = 0; k < in; ++k) {
    Lanes inputs[vectors];
    for (std::size_t v = 0; v < vectors; ++v) inputs[v] = load(x + k * kTile + v * kLanes);
    for (std::size_t u = 0; u < units; ++u) {
      const Lanes w = broadcast(weight[u * in + k]);
      for (std::size_t v = 0; v < vectors; ++v) sums[u][v] = fma(w, inputs[v], sums[u][v]);
    }
  }
  for (std::size_t u = 0; u < units; ++u) {
    for (std::size_t v = 0; v < vectors; ++v) store(y + u * kTile + v * kLanes, activated<activation>(sums[u][v]));
  }
}

template <Activation activation, std::size_t units>
inline void strip(const float* weight, const float* bias, std::size_t in, std::size_t vectors, const float* x,
                  float* y) {
  std::size_t v = 0;
  for (; v + kVectors <= vectors; v += kVectors) {
    register_tile<activation, units, kVectors>(weight, bias, in, x + v * kLanes, y + v * kLanes);
  }
  for (; v < vectors; ++v) register_tile<activation, units, 1>(weight, bias, in, x + v * kLanes, y + v * kLanes);
}

template <Activation activation>
inline void layer_of(const float* parameters, const Layer& layer, std::size_t vectors, const float* x, float* y) {
  const float* weight = parameters + layer.weight;
  const float* bias = parameters + layer.bias;
  std::size_t u = 0;
  const auto rows = [&]<std::size_t units>() {
    for (; u + units <= layer.out; u += units) {
      strip<activation, units>(weight + u * layer.in, bias + u, layer.in, vectors, x, y + u * kTile);
    }
  };
  rows.template operator()<kUnits>();
  rows.template operator()<2>();
  rows.template operator()<1>();
}

inline void layer(const float* parameters, const Layer& of, Activation activation, std::size_t vectors, const float* x,
                  float* y) {
  switch (activation) {
    case Activation::tanh:
      return layer_of<Activation::tanh>(parameters, of, vectors, x, y);
    case Activation::relu:
      return layer_of<Activation::relu>(parameters, of, vectors, x, y);
    case Activation::identity:
      return layer_of<Activation::identity>(parameters, of, vectors, x, y);
  }
}

inline constexpr std::uint64_t kPolicyDomain = 0x706F6C6963790000U;  // "policy": apart from the environments' numbers

/// Four random words for each of 16 environments; `block` numbers the fours of one environment and step.
struct Random {
  std::uint32_t words[4][kLanes];

  Random(const Draw& draw, std::size_t first, std::size_t block) {
    const auto step_low = static_cast<std::uint32_t>(draw.step);
    const auto step_high = static_cast<std::uint32_t>(draw.step >> 32U);
    for (std::size_t i = 0; i < kLanes; ++i) {
      const Words drawn = philox({{static_cast<std::uint32_t>(draw.first_env + first + i),
                                   static_cast<std::uint32_t>(block), step_low, step_high}},
                                 draw.seed ^ kPolicyDomain);
      for (std::size_t w = 0; w < 4; ++w) words[w][i] = drawn.word[w];
    }
  }

  /// Multiples of 2^-23 in [0, 1): coarse enough that u * s < s in float32, so that the last choice is not drawn unless
  /// its probability is above 0.
  [[nodiscard]] Lanes uniform(std::size_t word) const {
    float values[kLanes];
    for (std::size_t i = 0; i < kLanes; ++i) {
      values[i] = static_cast<float>(static_cast<std::int32_t>(words[word][i] >> 9U)) * 0x1p-23F;
    }
    return load(values);
  }
  /// Multiples of 2^-24 in (0, 1].
  [[nodiscard]] Lanes positive(std::size_t word) const {
    float values[kLanes];
    for (std::size_t i = 0; i < kLanes; ++i) {
      values[i] = static_cast<float>(static_cast<std::int32_t>(words[word][i] >> 8U) + 1) * 0x1p-24F;
    }
    return load(values);
  }
};

inline void sample_categorical(const Sampling& in, std::int32_t* actions, float* log_probs) {
  for (std::size_t first = 0; first < in.count; first += kLanes) {
    const std::size_t n = in.count - first < kLanes ? in.count - first : kLanes;
    const float* logits = in.logits + first;
    Lanes log_prob = zero();
    for (std::size_t block = 0; block * 4 < in.actions; ++block) {
      const Random random(in.draw, first, block);
      for (std::size_t head = block * 4; head < in.actions && head < block * 4 + 4; ++head) {
        const std::size_t size = in.sizes[head];
        Lanes top = load(logits);
        Ints best = broadcast_int(0);
        for (std::size_t i = 1; i < size; ++i) {
          const Lanes logit = load(logits + i * kTile);
          const Mask higher = logit > top;
          best = select(higher, broadcast_int(static_cast<std::int32_t>(i)), best);
          top = select(higher, logit, top);
        }
        Lanes total = zero();
        for (std::size_t i = 0; i < size; ++i) total = total + exp(load(logits + i * kTile) - top);
        Lanes chosen = top;
        Ints action = best;
        if (!in.draw.greedy) {
          const Lanes mark = random.uniform(head % 4) * total;
          Lanes reached = zero();
          chosen = load(logits);
          action = broadcast_int(0);
          for (std::size_t i = 0; i + 1 < size; ++i) {  // the first choice at which the running sum is above the mark
            reached = reached + exp(load(logits + i * kTile) - top);
            const Mask stays = reached > mark;
            action = select(stays, action, broadcast_int(static_cast<std::int32_t>(i + 1)));
            chosen = select(stays, chosen, load(logits + (i + 1) * kTile));
          }
        }
        log_prob = log_prob + ((chosen - top) - log(total));
        std::int32_t values[kLanes];
        store(values, action);
        for (std::size_t i = 0; i < n; ++i) actions[(first + i) * in.actions + head] = values[i];
        logits += size * kTile;
      }
    }
    store_part(log_probs + first, n, log_prob);
  }
}

inline void sample_gaussian(const Sampling& in, float* actions, float* log_probs) {
  const Lanes half = broadcast(0.5F);
  for (std::size_t first = 0; first < in.count; first += kLanes) {
    const std::size_t n = in.count - first < kLanes ? in.count - first : kLanes;
    Lanes log_prob = zero();
    for (std::size_t block = 0; block * 4 < in.actions; ++block) {
      const Random random(in.draw, first, block);
      for (std::size_t k = block * 4; k < in.actions && k < block * 4 + 4; ++k) {
        const Lanes log_std = broadcast(in.log_std[k]);
        Lanes z = zero();
        if (!in.draw.greedy) {  // Box & Muller 1958: two words make the deviates of two dimensions
          const std::size_t pair = k % 4 / 2 * 2;
          const Lanes radius = sqrt(broadcast(-2.0F) * log(random.positive(pair)));
          const Lanes turns = random.uniform(pair + 1);
          z = radius * (k % 2 == 0 ? cos_turns(turns) : sin_turns(turns));
        }
        float values[kLanes];
        store(values, fma(exp(log_std), z, load(in.logits + k * kTile + first)));
        for (std::size_t i = 0; i < n; ++i) actions[(first + i) * in.actions + k] = values[i];
        log_prob = log_prob - fma(half * z, z, log_std + broadcast(0.918938533F));  // ln sqrt(2 pi)
      }
    }
    store_part(log_probs + first, n, log_prob);
  }
}

}  // namespace
}  // namespace headrace::rl
