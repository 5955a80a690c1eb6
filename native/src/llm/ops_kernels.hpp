// The row operations of ops.hpp written once over Lanes; each ops_<isa>.cpp includes this after choosing its flags.
#pragma once

#include "headrace/llm/ops.hpp"
#include "headrace/simd/lanes.hpp"
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

/// The largest size among the values `a` and `b` of a block.
inline float quantise_block(Lanes a, Lanes b, QuantisedBlock& out) {
  const bool finite = !any(is_nan(a * zero() + b * zero()));
  const float size = largest(max(abs(a), abs(b)));
  const float inverse = 127.0F / size;
  // Also false for a size so small, 0 above all, that its inverse is infinite: such a block counts as zeros.
  const bool usable = finite && inverse < __builtin_inff();
  const Lanes factor = broadcast(usable ? inverse : 0.0F);
  const Ints low = usable ? round_to_int(a * factor) : broadcast_int(0);
  const Ints high = usable ? round_to_int(b * factor) : broadcast_int(0);
  const std::int32_t halves[2] = {sum(low), sum(high)};
  store_i8(out.codes, low);
  store_i8(out.codes + kLanes, high);
  out.scale = usable ? size / 127.0F : (finite ? 0.0F : __builtin_nanf(""));
  out.sum = out.scale * static_cast<float>(halves[0] + halves[1]);
  for (int h = 0; h < 2; ++h) out.halves[h] = static_cast<std::int16_t>(halves[h]);
  return size;
}

inline void quantise(const float* x, std::size_t cols, float spike, const QuantisedRow& out) {
  const float limit = spike * first(sqrt(mean_square(x, cols)));
  for (std::size_t block = 0; block < cols / kQuantBlock; ++block) {
    const Lanes a = load(x + block * kQuantBlock);
    const Lanes b = load(x + block * kQuantBlock + kLanes);
    QuantisedBlock& coarse = out.coarse[block];
    coarse.fine = quantise_block(a, b, coarse) > limit;  // never so in a row that is not finite
    if (!coarse.fine) continue;
    const Lanes scale = broadcast(coarse.scale);
    quantise_block(a - scale * load_i8(coarse.codes), b - scale * load_i8(coarse.codes + kLanes), out.fine[block]);
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
    rms_norm, quantise, add, silu_mul, gelu_tanh_mul, softcap, argmax, exp_row, tanh_row, to_f16, from_f16,
};

}  // namespace
}  // namespace headrace::llm
