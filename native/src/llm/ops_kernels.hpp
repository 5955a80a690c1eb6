// The row operations of ops.hpp written once over Lanes; each ops_<isa>.cpp includes this after choosing its flags.
#pragma once

#include "headrace/llm/lanes.hpp"
#include "headrace/llm/ops.hpp"
#include "lanes_norm.hpp"

namespace headrace::llm {
namespace {

/// fn(offset, count) for each 16 values of a row; count is 16 but for the last ones.
template <class Fn>
inline void in_lanes(std::size_t n, Fn fn) {
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) fn(i, kLanes);
  if (i < n) fn(i, n - i);
}

inline void rms_norm(const float* x, const float* weight, std::size_t cols, float eps, float* out) {
  const Lanes scale = broadcast(inverse_rms(x, cols, eps));
  in_lanes(cols, [&](std::size_t i, std::size_t n) {
    store_part(out + i, n, load_part(x + i, n) * scale * load_part(weight + i, n));
  });
}

/// Block `block` of a row, its values in `a` and `b`.
inline void quantise_block(Lanes a, Lanes b, std::size_t block, const QuantisedRow& out) {
  const bool finite = !any(is_nan(a * zero() + b * zero()));
  const float size = largest(max(abs(a), abs(b)));
  const float inverse = 127.0F / size;
  // Also false for a size so small, 0 above all, that its inverse is infinite: such a block counts as zeros.
  const bool usable = finite && inverse < __builtin_inff();
  const Lanes factor = broadcast(usable ? inverse : 0.0F);
  const Ints low = usable ? round_to_int(a * factor) : broadcast_int(0);
  const Ints high = usable ? round_to_int(b * factor) : broadcast_int(0);
  const float scale = usable ? size / 127.0F : (finite ? 0.0F : __builtin_nanf(""));
  const std::int32_t low_sum = sum(low);
  const std::int32_t high_sum = sum(high);
  store_i8(out.codes + block * kQuantBlock, low);
  store_i8(out.codes + block * kQuantBlock + kLanes, high);
  out.scale[block] = scale;
  out.isum16[2 * block] = low_sum;
  out.isum16[2 * block + 1] = high_sum;
  out.fsum32[block] = scale * static_cast<float>(low_sum + high_sum);
}

inline void quantise(const float* x, std::size_t cols, const QuantisedRow& out) {
  for (std::size_t block = 0; block < cols / kQuantBlock; ++block) {
    const float* from = x + block * kQuantBlock;
    quantise_block(load(from), load(from + kLanes), block, out);
  }
}

inline void quantise_twice(const float* x, std::size_t cols, const QuantisedRow& coarse, const QuantisedRow& fine) {
  for (std::size_t block = 0; block < cols / kQuantBlock; ++block) {
    const std::size_t first = block * kQuantBlock;
    const Lanes a = load(x + first);
    const Lanes b = load(x + first + kLanes);
    quantise_block(a, b, block, coarse);
    const Lanes scale = broadcast(coarse.scale[block]);
    const Lanes low = a - scale * load_i8(coarse.codes + first);
    quantise_block(low, b - scale * load_i8(coarse.codes + first + kLanes), block, fine);
  }
}

inline void add(const float* x, const float* y, std::size_t n, float* out) {
  in_lanes(n, [&](std::size_t i, std::size_t m) { store_part(out + i, m, load_part(x + i, m) + load_part(y + i, m)); });
}

inline void silu_mul(const float* gate, const float* up, std::size_t n, float* out) {
  in_lanes(n, [&](std::size_t i, std::size_t m) {
    const Lanes g = load_part(gate + i, m);
    store_part(out + i, m, times_sigmoid(g, g) * load_part(up + i, m));
  });
}

inline void gelu_tanh_mul(const float* gate, const float* up, std::size_t n, float* out) {
  const Lanes linear = broadcast(1.59576912F);  // 2 sqrt(2 / pi), since (1 + tanh(u)) / 2 = sigmoid(2 u)
  const Lanes cubic = broadcast(0.0713548163F);
  in_lanes(n, [&](std::size_t i, std::size_t m) {
    const Lanes g = load_part(gate + i, m);
    store_part(out + i, m, times_sigmoid(g, fma(g * g, cubic, linear) * g) * load_part(up + i, m));
  });
}

inline Lanes capped(Lanes x, Lanes cap) {
  return cap * tanh(x / cap);
}

inline void softcap(float* x, std::size_t n, float cap) {
  in_lanes(n, [&](std::size_t i, std::size_t m) { store_part(x + i, m, capped(load_part(x + i, m), broadcast(cap))); });
}

inline std::int64_t argmax(const float* x, std::size_t n) {
  if (n == 0) return -1;
  Ints at = broadcast_int(0);  // the vector in which each lane's largest value was first seen
  Lanes best = broadcast(-__builtin_inff());
  Mask bad = below(0);
  in_lanes(n, [&](std::size_t i, std::size_t m) {
    const Lanes value = select(below(m), load_part(x + i, m), best);
    const Mask higher = value > best;
    bad = bad | is_nan(value);
    best = select(higher, value, best);
    at = select(higher, broadcast_int(static_cast<std::int32_t>(i / kLanes)), at);
  });
  if (any(bad)) return -1;
  const float top = largest(best);
  float values[kLanes];
  std::int32_t vectors[kLanes];
  store(values, best);
  store(vectors, at);
  std::int64_t found = static_cast<std::int64_t>(n);
  for (std::size_t lane = 0; lane < kLanes && lane < n; ++lane) {
    const std::int64_t index = static_cast<std::int64_t>(static_cast<std::size_t>(vectors[lane]) * kLanes + lane);
    if (values[lane] == top && index < found) found = index;
  }
  return found;
}

inline void exp_row(const float* x, std::size_t n, float* out) {
  in_lanes(n, [&](std::size_t i, std::size_t m) { store_part(out + i, m, exp(load_part(x + i, m))); });
}

inline void tanh_row(const float* x, std::size_t n, float* out) {
  in_lanes(n, [&](std::size_t i, std::size_t m) { store_part(out + i, m, tanh(load_part(x + i, m))); });
}

inline void to_f16(const float* x, std::size_t n, std::uint16_t* out) {
  in_lanes(n, [&](std::size_t i, std::size_t m) {
    std::uint16_t halves[kLanes];
    store_f16(halves, load_part(x + i, m));
    for (std::size_t k = 0; k < m; ++k) out[i + k] = halves[k];
  });
}

inline void from_f16(const std::uint16_t* x, std::size_t n, float* out) {
  in_lanes(n, [&](std::size_t i, std::size_t m) {
    std::uint16_t halves[kLanes] = {};
    for (std::size_t k = 0; k < m; ++k) halves[k] = x[i + k];
    store_part(out + i, m, load_f16(halves));
  });
}

inline constexpr Ops kOps = {
    rms_norm, quantise, quantise_twice, add,      silu_mul, gelu_tanh_mul,
    softcap,  argmax,   exp_row,        tanh_row, to_f16,   from_f16,
};

}  // namespace
}  // namespace headrace::llm
