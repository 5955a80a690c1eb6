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

/// 32 codes, those of a * factor and b * factor; halves[h] += `weight` times the sum of half h.
inline void store_codes(Lanes a, Lanes b, float factor, std::int32_t weight, std::int8_t* codes,
                        std::int16_t (&halves)[2]) {
  const Ints low = round_to_int(a * broadcast(factor));
  const Ints high = round_to_int(b * broadcast(factor));
  store_i8(codes, low);
  store_i8(codes + kLanes, high);
  halves[0] = static_cast<std::int16_t>(halves[0] + weight * sum(low));
  halves[1] = static_cast<std::int16_t>(halves[1] + weight * sum(high));
}

inline void quantise(const float* x, std::size_t cols, bool fine, const QuantisedRow& out) {
  for (std::size_t block = 0; block < cols / kQuantBlock; ++block) {
    QuantisedCodes& codes = out.codes[block];
    QuantisedScale& scale = out.scales[block];
    Lanes a = load(x + block * kQuantBlock);
    Lanes b = load(x + block * kQuantBlock + kLanes);
    const float size = largest(max(abs(a), abs(b)));
    const bool finite = !any(is_nan(a * zero() + b * zero()));
    const bool usable = finite && size >= 1e-32F;  // so that the scale is a normal number
    if (!usable) a = b = zero();
    const float inverse = usable ? 127.0F / size : 0.0F;
    const float step = usable ? size / 127.0F : (finite ? 0.0F : __builtin_nanf(""));
    scale.halves[0] = scale.halves[1] = 0;
    store_codes(a, b, inverse, 16, codes.coarse, scale.halves);
    scale.scale = step * 0.0625F;
    scale.fine = fine;
    if (fine && usable) {
      a = a - broadcast(step) * load_i8(codes.coarse);
      b = b - broadcast(step) * load_i8(codes.coarse + kLanes);
    } else {
      a = b = zero();
    }
    store_codes(a, b, inverse * 16.0F, 1, codes.fine, scale.halves);
    scale.sum = scale.scale * static_cast<float>(scale.halves[0] + scale.halves[1]);
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
