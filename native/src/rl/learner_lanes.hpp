// The learner's kernels written once over Lanes; each learner_<isa>.cpp includes this after choosing its flags. Samples
// go through in tiles of kRows: forward, loss and backward of one network while its activations are in the cache. The
// backward pass leaves, in place of each activation, the derivative with respect to what went into it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "learner_kernels.hpp"
#include "learner_loss.hpp"
#include "learner_product.hpp"

namespace headrace::rl::learning {
namespace {

/// LossSums times the activation's slope, by what it put out.
struct TimesTanhSlope {
  static Lanes apply(Lanes sum, const float* y) {
    const Lanes out = load(y);
    return sum * fma(negated(out), out, broadcast(1.0F));
  }
};
struct TimesReluSlope {
  static Lanes apply(Lanes sum, const float* y) { return select(load(y) > zero(), sum, zero()); }
};

inline void product_times_slope(Activation activation, const Product& p) {
  if (activation == Activation::tanh) {
    product<TimesTanhSlope>(p);
  } else {
    product<TimesReluSlope>(p);
  }
}

inline void activate(Activation activation, float* x, std::size_t n) {
  if (activation == Activation::tanh) {
    for (std::size_t i = 0; i < n; i += kLanes) store(x + i, fast_tanh(load(x + i)));
  } else {
    for (std::size_t i = 0; i < n; i += kLanes) store(x + i, max(zero(), load(x + i)));
  }
}

/// 16 vectors -> the sum of each.
inline Lanes sums_of(const Lanes (&x)[kLanes]) {
  Lanes folded[kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) folded[i] = x[i];
  for (std::size_t n = kLanes / 2; n != 0; n /= 2) {
    for (std::size_t i = 0; i < n; ++i) {
      const Lanes a = folded[2 * i];
      const Lanes b = folded[2 * i + 1];
      folded[i] = even(a, b) + odd(a, b);
    }
  }
  return folded[0];
}

/// One network at work on a tile of `rows` samples, a multiple of 16; those beyond the minibatch are zeros.
struct Pass {
  const Plan& plan;
  const PackedNet& net;
  const float* packed;
  const float* mirror;
  const Scratch& s;
  std::size_t rows;

  [[nodiscard]] const PackedLayer& last() const { return net.layers[net.count - 1]; }
  /// What goes into layer `i`, [rows][wide(in)].
  [[nodiscard]] float* input(std::size_t i) const { return i == 0 ? s.x : s.hidden + net.layers[i - 1].activation; }

  void forward() const {
    for (std::size_t i = 0; i + 1 < net.count; ++i) {
      const PackedLayer& layer = net.layers[i];
      const std::size_t width = wide(layer.out);
      product<>({rows, layer.in, width / kLanes, input(i), wide(layer.in), 1, packed + layer.weight, width,
                 packed + layer.bias, 0, input(i + 1), width});
      activate(plan.activation, input(i + 1), rows * width);
    }
    const float* x = input(net.count - 1);
    const std::size_t width = wide(last().in);
    for (std::size_t o = 0; o < last().out; ++o) {
      const float* weight = packed + last().weight + o * width;
      const Lanes bias = broadcast(packed[last().bias + o]);
      for (std::size_t row = 0; row < rows; row += kLanes) {
        Lanes sums[kLanes];
        for (Lanes& each : sums) each = zero();
        for (std::size_t c = 0; c < width; c += kLanes) {
          const Lanes w = load(weight + c);
#pragma GCC unroll 16
          for (std::size_t r = 0; r < kLanes; ++r) sums[r] = fma(load(x + (row + r) * width + c), w, sums[r]);
        }
        store(s.out + o * kRows + row, sums_of(sums) + bias);
      }
    }
  }

  void backward(float* gradients) const {
    const std::size_t width = wide(last().in);
    float* x = input(net.count - 1);
    float* weight = gradients + last().weight;
    product<>({last().out, rows, width / kLanes, s.d_out, kRows, 1, x, width, weight, width, weight, width});
    for (std::size_t o = 0; o < last().out; ++o) {
      Lanes total = zero();
      for (std::size_t row = 0; row < rows; row += kLanes) total = total + load(s.d_out + o * kRows + row);
      gradients[last().bias + o] += sum(total);
    }
    if (net.count == 1) return;
    product_times_slope(plan.activation, {rows, last().out, width / kLanes, s.d_out, 1, kRows, packed + last().weight,
                                          width, s.zeros, 0, x, width});
    for (std::size_t i = net.count - 1; i-- > 0;) hidden_backward(i, gradients);
  }

  void hidden_backward(std::size_t i, float* gradients) const {
    const PackedLayer& layer = net.layers[i];
    const std::size_t in = wide(layer.in);
    const std::size_t out = wide(layer.out);
    const float* d = input(i + 1);
    float* weight = gradients + layer.weight;
    product<>({layer.in, rows, out / kLanes, input(i), 1, in, d, out, weight, out, weight, out});
    for (std::size_t c = 0; c < out; c += kLanes) {
      Lanes total = load(gradients + layer.bias + c);
      for (std::size_t row = 0; row < rows; ++row) total = total + load(d + row * out + c);
      store(gradients + layer.bias + c, total);
    }
    if (i == 0) return;
    product_times_slope(plan.activation,
                        {rows, layer.out, in / kLanes, d, out, 1, mirror + layer.mirror, in, s.zeros, 0, input(i), in});
  }
};

inline void load_rows(const Plan& plan, const Experience& from, const std::uint32_t* order, std::size_t count,
                      std::size_t rows, const Scratch& s) {
  const std::size_t width = wide(plan.obs_size);
  const auto* choices = static_cast<const std::int32_t*>(from.actions);
  const auto* numbers = static_cast<const float*>(from.actions);
  for (std::size_t row = 0; row < count; ++row) {
    const std::size_t at = order[row];
    const float* obs = from.obs + at * plan.obs_size;
    for (std::size_t i = 0; i < plan.obs_size; ++i) s.x[row * width + i] = obs[i];
    for (std::size_t k = 0; k < plan.actions; ++k) {
      const std::size_t action = at * plan.actions + k;
      s.actions[k * kRows + row] =
          plan.head == HeadKind::gaussian ? numbers[action] : static_cast<float>(choices[action]);
    }
    s.log_probs[row] = from.log_probs[at];
    s.advantages[row] = from.advantages[at];
    s.values[row] = from.values[at];
    s.returns[row] = from.returns[at];
  }
  for (std::size_t row = count; row < rows; ++row) {
    for (std::size_t i = 0; i < width; ++i) s.x[row * width + i] = 0.0F;
    for (std::size_t k = 0; k < plan.actions; ++k) s.actions[k * kRows + row] = 0.0F;
    s.log_probs[row] = s.advantages[row] = s.values[row] = s.returns[row] = 0.0F;
  }
}

inline void gradients_of(const Plan& plan, const float* packed, const float* mirror, const Experience& experience,
                         const std::uint32_t* order, std::size_t count, const Terms& terms, const Scratch& s,
                         float* gradients, LossSums& sums) {
  for (std::size_t first = 0; first < count; first += kRows) {
    const std::size_t n = count - first < kRows ? count - first : kRows;
    const std::size_t rows = wide(n);
    load_rows(plan, experience, order + first, n, rows, s);
    LaneSums tile;
    const Pass actor{plan, plan.actor, packed, mirror, s, rows};
    actor.forward();
    for (std::size_t at = 0; at < rows; at += kLanes) {
      const Mask live = below(n - at);
      if (plan.head == HeadKind::gaussian) {
        gaussian_loss(plan, terms, packed + plan.log_std, at, live, s, gradients + plan.log_std, tile);
      } else {
        categorical_loss(plan, terms, at, live, s, tile);
      }
    }
    actor.backward(gradients);
    const Pass critic{plan, plan.critic, packed, mirror, s, rows};
    critic.forward();
    for (std::size_t at = 0; at < rows; at += kLanes) value_loss(terms, at, below(n - at), s, tile);
    critic.backward(gradients);
    tile.add_to(sums);
  }
}

inline double add_up(const Segment& segment, std::size_t slices, std::size_t stride, float* gradients) {
  Lanes squares = zero();
  for (std::size_t i = segment.at; i < segment.at + segment.width; i += kLanes) {
    Lanes total = load(gradients + i);
    for (std::size_t slice = 1; slice < slices; ++slice) total = total + load(gradients + slice * stride + i);
    store(gradients + i, total);
    squares = fma(total, total, squares);
  }
  return static_cast<double>(sum(squares));
}

inline void step(const Segment& segment, const AdamStep& adam, const float* gradients, float* packed, float* first,
                 float* second, float* mirror) {
  const Lanes scale = broadcast(adam.scale);
  for (std::size_t i = 0; i < segment.width; i += kLanes) {
    const std::size_t at = segment.at + i;
    const Lanes g = load(gradients + at) * scale;
    const Lanes m = fma(broadcast(adam.take1), g, broadcast(adam.keep1) * load(first + at));
    const Lanes v = fma(broadcast(adam.take2) * g, g, broadcast(adam.keep2) * load(second + at));
    const Lanes spread = fma(sqrt(v), broadcast(adam.root), broadcast(adam.epsilon));
    const Lanes stepped = fma(broadcast(-adam.rate), m / spread, load(packed + at));
    store(first + at, m);
    store(second + at, v);
    store(packed + at, stepped);
    if (segment.stride != 0) {
      float* to = mirror + segment.mirror + i * segment.stride;
      for (std::size_t lane = 0; lane < kLanes; ++lane) to[lane * segment.stride] = packed[at + lane];
    }
  }
}

inline constexpr LearnerKernels kKernels = {gradients_of, add_up, step};

}  // namespace
}  // namespace headrace::rl::learning
