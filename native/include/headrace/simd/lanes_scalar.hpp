// Lanes as a plain array, for any processor and as what the others are compared with; see lanes.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {
namespace {

struct Lanes {
  float v[16];
};
struct Ints {
  std::int32_t v[16];
};
struct Mask {
  bool v[16];
};

template <class Out, class Fn>
inline Out each(Fn fn) {
  Out out;
  for (std::size_t i = 0; i < 16; ++i) out.v[i] = fn(i);
  return out;
}
template <class To, class From>
inline To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

inline Mask below(std::size_t n) {
  return each<Mask>([&](std::size_t i) { return i < n; });
}
inline bool any(Mask m) {
  bool found = false;
  for (const bool set : m.v) found = found || set;
  return found;
}
inline Mask without(Mask a, Mask b) {
  return each<Mask>([&](std::size_t i) { return a.v[i] && !b.v[i]; });
}
inline Mask operator|(Mask a, Mask b) {
  return each<Mask>([&](std::size_t i) { return a.v[i] || b.v[i]; });
}

inline Lanes broadcast(float x) {
  return each<Lanes>([&](std::size_t) { return x; });
}
inline Lanes zero() {
  return broadcast(0.0F);
}
inline Lanes load(const float* from) {
  return each<Lanes>([&](std::size_t i) { return from[i]; });
}
inline Lanes load_part(const float* from, std::size_t n) {
  return each<Lanes>([&](std::size_t i) { return i < n ? from[i] : 0.0F; });
}
inline void store(float* to, Lanes a) {
  for (std::size_t i = 0; i < 16; ++i) to[i] = a.v[i];
}
inline void store_part(float* to, std::size_t n, Lanes a) {
  for (std::size_t i = 0; i < 16 && i < n; ++i) to[i] = a.v[i];
}

inline Lanes operator+(Lanes a, Lanes b) {
  return each<Lanes>([&](std::size_t i) { return a.v[i] + b.v[i]; });
}
inline Lanes operator-(Lanes a, Lanes b) {
  return each<Lanes>([&](std::size_t i) { return a.v[i] - b.v[i]; });
}
inline Lanes operator*(Lanes a, Lanes b) {
  return each<Lanes>([&](std::size_t i) { return a.v[i] * b.v[i]; });
}
inline Lanes operator/(Lanes a, Lanes b) {
  return each<Lanes>([&](std::size_t i) { return a.v[i] / b.v[i]; });
}
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return each<Lanes>([&](std::size_t i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
inline Lanes min(Lanes a, Lanes b) {
  return each<Lanes>([&](std::size_t i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Lanes max(Lanes a, Lanes b) {
  return each<Lanes>([&](std::size_t i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Lanes sqrt(Lanes a) {
  return each<Lanes>([&](std::size_t i) { return __builtin_sqrtf(a.v[i]); });
}
inline Lanes abs(Lanes a) {
  return each<Lanes>([&](std::size_t i) { return __builtin_fabsf(a.v[i]); });
}
inline Mask operator>(Lanes a, Lanes b) {
  return each<Mask>([&](std::size_t i) { return a.v[i] > b.v[i]; });
}
inline Mask is_nan(Lanes a) {
  return each<Mask>([&](std::size_t i) { return __builtin_isnan(a.v[i]) != 0; });
}
inline Lanes select(Mask m, Lanes a, Lanes b) {
  return each<Lanes>([&](std::size_t i) { return m.v[i] ? a.v[i] : b.v[i]; });
}

inline Ints select(Mask m, Ints a, Ints b) {
  return each<Ints>([&](std::size_t i) { return m.v[i] ? a.v[i] : b.v[i]; });
}
inline Ints broadcast_int(std::int32_t x) {
  return each<Ints>([&](std::size_t) { return x; });
}
inline Ints operator+(Ints a, Ints b) {
  return each<Ints>([&](std::size_t i) { return a.v[i] + b.v[i]; });
}
/// Half to even, by adding 1.5 * 2^23: right below 2^22, which is all that is asked of it; NaN gives some integer.
inline std::int32_t round_one(float x) {
  constexpr float kMagic = 12582912.0F;
  return static_cast<std::int32_t>(same_bits<std::uint32_t>(x + kMagic) - same_bits<std::uint32_t>(kMagic));
}
inline Ints round_to_int(Lanes a) {
  return each<Ints>([&](std::size_t i) { return round_one(a.v[i]); });
}
inline Lanes to_float(Ints a) {
  return each<Lanes>([&](std::size_t i) { return static_cast<float>(a.v[i]); });
}
inline void store(std::int32_t* to, Ints a) {
  for (std::size_t i = 0; i < 16; ++i) to[i] = a.v[i];
}

inline float power_of_two(std::int32_t n) {
  return same_bits<float>((static_cast<std::uint32_t>(n) + 127U) << 23U);
}
/// p * 2^n for n integral in -252..252, rounded once.
inline Lanes times_power_of_two(Lanes p, Lanes n) {
  return each<Lanes>([&](std::size_t i) {
    const std::int32_t power = round_one(n.v[i]);
    const std::int32_t first = power >> 1;  // in two steps, each a normal number: the first product is exact
    return p.v[i] * power_of_two(first) * power_of_two(power - first);
  });
}

inline float f16_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16U;
  const std::uint32_t rest = half & 0x7FFFU;
  if (rest < 0x0400U) {  // zero and denormals: an integer times 2^-24
    const float size = static_cast<float>(rest) * 0x1p-24F;
    return same_bits<float>(sign | same_bits<std::uint32_t>(size));
  }
  if (rest >= 0x7C00U) {  // infinity; a NaN becomes a quiet one
    return same_bits<float>(sign | 0x7F800000U | (rest > 0x7C00U ? 0x400000U : 0U) | ((rest & 0x3FFU) << 13U));
  }
  return same_bits<float>(sign | ((rest << 13U) + ((127U - 15U) << 23U)));
}
inline std::uint16_t float_to_f16(float x) {
  const std::uint32_t bits = same_bits<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16U) & 0x8000U;
  const std::uint32_t rest = bits & 0x7FFFFFFFU;
  std::uint32_t half = 0;
  if (rest > 0x7F800000U) {
    half = 0x7E00U | ((rest >> 13U) & 0x3FFU);
  } else if (rest < 0x38800000U) {  // below 2^-14: let an addition round to a multiple of 2^-24
    const float size = same_bits<float>(rest);
    half = same_bits<std::uint32_t>(size + 0.5F) - same_bits<std::uint32_t>(0.5F);
  } else {
    const std::uint32_t rounded = rest + 0xFFFU + ((rest >> 13U) & 1U);
    half = rounded >= 0x47800000U ? 0x7C00U : (rounded - ((127U - 15U) << 23U)) >> 13U;
  }
  return static_cast<std::uint16_t>(sign | half);
}
inline Lanes load_f16(const std::uint16_t* from) {
  return each<Lanes>([&](std::size_t i) { return f16_to_float(from[i]); });
}
inline void store_f16(std::uint16_t* to, Lanes a) {
  for (std::size_t i = 0; i < 16; ++i) to[i] = float_to_f16(a.v[i]);
}
inline Lanes load_i8(const std::int8_t* from) {
  return each<Lanes>([&](std::size_t i) { return static_cast<float>(from[i]); });
}
inline void store_i8(std::int8_t* to, Ints a) {
  for (std::size_t i = 0; i < 16; ++i) to[i] = static_cast<std::int8_t>(a.v[i]);
}

inline Lanes even(Lanes a, Lanes b) {
  return each<Lanes>([&](std::size_t i) { return i < 8 ? a.v[2 * i] : b.v[2 * i - 16]; });
}
inline Lanes odd(Lanes a, Lanes b) {
  return each<Lanes>([&](std::size_t i) { return i < 8 ? a.v[2 * i + 1] : b.v[2 * i - 15]; });
}

inline float sum(Lanes a) {
  for (std::size_t half = 8; half != 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) a.v[i] = a.v[i] + a.v[i + half];
  }
  return a.v[0];
}
inline float largest(Lanes a) {
  for (std::size_t half = 8; half != 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
  }
  return a.v[0];
}
inline std::int32_t sum(Ints a) {
  std::int32_t total = 0;
  for (const std::int32_t x : a.v) total += x;
  return total;
}

}  // namespace
}  // namespace headrace
