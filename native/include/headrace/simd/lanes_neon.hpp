// Lanes as four NEON registers (AArch64); see lanes.hpp for what each function means.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace headrace {
namespace {

struct Lanes {
  float32x4_t a, b, c, d;
};
struct Ints {
  int32x4_t a, b, c, d;
};
struct Mask {
  uint32x4_t a, b, c, d;  // all bits of a lane or none
};

inline Mask below(std::size_t n) {
  static constexpr std::int32_t kIndex[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const int32x4_t count = vdupq_n_s32(static_cast<std::int32_t>(n < 16 ? n : 16));
  return {vcgtq_s32(count, vld1q_s32(kIndex)), vcgtq_s32(count, vld1q_s32(kIndex + 4)),
          vcgtq_s32(count, vld1q_s32(kIndex + 8)), vcgtq_s32(count, vld1q_s32(kIndex + 12))};
}
inline bool any(Mask m) {
  return vmaxvq_u32(vorrq_u32(vorrq_u32(m.a, m.b), vorrq_u32(m.c, m.d))) != 0;
}
inline Mask without(Mask x, Mask y) {
  return {vbicq_u32(x.a, y.a), vbicq_u32(x.b, y.b), vbicq_u32(x.c, y.c), vbicq_u32(x.d, y.d)};
}
inline Mask operator|(Mask x, Mask y) {
  return {vorrq_u32(x.a, y.a), vorrq_u32(x.b, y.b), vorrq_u32(x.c, y.c), vorrq_u32(x.d, y.d)};
}

inline Lanes broadcast(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {v, v, v, v};
}
inline Lanes zero() {
  return broadcast(0.0F);
}
inline Lanes load(const float* from) {
  return {vld1q_f32(from), vld1q_f32(from + 4), vld1q_f32(from + 8), vld1q_f32(from + 12)};
}
inline void store(float* to, Lanes x) {
  vst1q_f32(to, x.a);
  vst1q_f32(to + 4, x.b);
  vst1q_f32(to + 8, x.c);
  vst1q_f32(to + 12, x.d);
}
inline Lanes load_part(const float* from, std::size_t n) {
  if (n >= 16) return load(from);
  float all[16] = {};
  for (std::size_t i = 0; i < n; ++i) all[i] = from[i];
  return load(all);
}
inline void store_part(float* to, std::size_t n, Lanes x) {
  if (n >= 16) return store(to, x);
  float all[16];
  store(all, x);
  for (std::size_t i = 0; i < n; ++i) to[i] = all[i];
}

inline Lanes operator+(Lanes x, Lanes y) {
  return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b), vaddq_f32(x.c, y.c), vaddq_f32(x.d, y.d)};
}
inline Lanes operator-(Lanes x, Lanes y) {
  return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b), vsubq_f32(x.c, y.c), vsubq_f32(x.d, y.d)};
}
inline Lanes operator*(Lanes x, Lanes y) {
  return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b), vmulq_f32(x.c, y.c), vmulq_f32(x.d, y.d)};
}
inline Lanes operator/(Lanes x, Lanes y) {
  return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b), vdivq_f32(x.c, y.c), vdivq_f32(x.d, y.d)};
}
inline Lanes fma(Lanes x, Lanes y, Lanes z) {
  return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c), vfmaq_f32(z.d, x.d, y.d)};
}
inline Lanes sqrt(Lanes x) {
  return {vsqrtq_f32(x.a), vsqrtq_f32(x.b), vsqrtq_f32(x.c), vsqrtq_f32(x.d)};
}
inline Lanes abs(Lanes x) {
  return {vabsq_f32(x.a), vabsq_f32(x.b), vabsq_f32(x.c), vabsq_f32(x.d)};
}
inline Mask operator>(Lanes x, Lanes y) {
  return {vcgtq_f32(x.a, y.a), vcgtq_f32(x.b, y.b), vcgtq_f32(x.c, y.c), vcgtq_f32(x.d, y.d)};
}
inline Mask is_nan(Lanes x) {
  return {vmvnq_u32(vceqq_f32(x.a, x.a)), vmvnq_u32(vceqq_f32(x.b, x.b)), vmvnq_u32(vceqq_f32(x.c, x.c)),
          vmvnq_u32(vceqq_f32(x.d, x.d))};
}
inline Lanes select(Mask m, Lanes x, Lanes y) {
  return {vbslq_f32(m.a, x.a, y.a), vbslq_f32(m.b, x.b, y.b), vbslq_f32(m.c, x.c, y.c), vbslq_f32(m.d, x.d, y.d)};
}
inline float32x4_t max4(float32x4_t x, float32x4_t y) {
  return vbslq_f32(vcgtq_f32(x, y), x, y);
}
inline Lanes max(Lanes x, Lanes y) {
  return select(x > y, x, y);
}
inline Lanes min(Lanes x, Lanes y) {
  return select(y > x, x, y);
}

inline Ints select(Mask m, Ints x, Ints y) {
  return {vbslq_s32(m.a, x.a, y.a), vbslq_s32(m.b, x.b, y.b), vbslq_s32(m.c, x.c, y.c), vbslq_s32(m.d, x.d, y.d)};
}
inline Ints broadcast_int(std::int32_t x) {
  const int32x4_t v = vdupq_n_s32(x);
  return {v, v, v, v};
}
inline Ints operator+(Ints x, Ints y) {
  return {vaddq_s32(x.a, y.a), vaddq_s32(x.b, y.b), vaddq_s32(x.c, y.c), vaddq_s32(x.d, y.d)};
}
inline Ints round_to_int(Lanes x) {
  return {vcvtnq_s32_f32(x.a), vcvtnq_s32_f32(x.b), vcvtnq_s32_f32(x.c), vcvtnq_s32_f32(x.d)};
}
inline Lanes to_float(Ints x) {
  return {vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b), vcvtq_f32_s32(x.c), vcvtq_f32_s32(x.d)};
}
inline void store(std::int32_t* to, Ints x) {
  vst1q_s32(to, x.a);
  vst1q_s32(to + 4, x.b);
  vst1q_s32(to + 8, x.c);
  vst1q_s32(to + 12, x.d);
}

inline float32x4_t times_power_of_two_4(float32x4_t p, float32x4_t n) {
  const int32x4_t power = vcvtnq_s32_f32(n);
  const int32x4_t first = vshrq_n_s32(power, 1);  // in two steps, each a normal number: the first product is exact
  const int32x4_t second = vsubq_s32(power, first);
  const int32x4_t bias = vdupq_n_s32(127);
  p = vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(first, bias), 23)));
  return vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(second, bias), 23)));
}
/// p * 2^n for n integral in -252..252, rounded once.
inline Lanes times_power_of_two(Lanes p, Lanes n) {
  return {times_power_of_two_4(p.a, n.a), times_power_of_two_4(p.b, n.b), times_power_of_two_4(p.c, n.c),
          times_power_of_two_4(p.d, n.d)};
}

inline float32x4_t load_f16_4(const std::uint16_t* from) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
}
inline Lanes load_f16(const std::uint16_t* from) {
  return {load_f16_4(from), load_f16_4(from + 4), load_f16_4(from + 8), load_f16_4(from + 12)};
}
inline void store_f16(std::uint16_t* to, Lanes x) {
  vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(x.a)));
  vst1_u16(to + 4, vreinterpret_u16_f16(vcvt_f16_f32(x.b)));
  vst1_u16(to + 8, vreinterpret_u16_f16(vcvt_f16_f32(x.c)));
  vst1_u16(to + 12, vreinterpret_u16_f16(vcvt_f16_f32(x.d)));
}
inline Lanes load_i8(const std::int8_t* from) {
  const int8x16_t codes = vld1q_s8(from);
  const int16x8_t low = vmovl_s8(vget_low_s8(codes));
  const int16x8_t high = vmovl_s8(vget_high_s8(codes));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
          vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))};
}
inline void store_i8(std::int8_t* to, Ints x) {
  const int16x8_t low = vcombine_s16(vmovn_s32(x.a), vmovn_s32(x.b));
  const int16x8_t high = vcombine_s16(vmovn_s32(x.c), vmovn_s32(x.d));
  vst1q_s8(to, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}

inline Lanes even(Lanes x, Lanes y) {
  return {vuzp1q_f32(x.a, x.b), vuzp1q_f32(x.c, x.d), vuzp1q_f32(y.a, y.b), vuzp1q_f32(y.c, y.d)};
}
inline Lanes odd(Lanes x, Lanes y) {
  return {vuzp2q_f32(x.a, x.b), vuzp2q_f32(x.c, x.d), vuzp2q_f32(y.a, y.b), vuzp2q_f32(y.c, y.d)};
}

inline float sum(Lanes l) {
  const float32x4_t x = vaddq_f32(vaddq_f32(l.a, l.c), vaddq_f32(l.b, l.d));
  const float32x2_t y = vadd_f32(vget_low_f32(x), vget_high_f32(x));
  return vget_lane_f32(y, 0) + vget_lane_f32(y, 1);
}
inline float largest(Lanes l) {
  const float32x4_t x = max4(max4(l.a, l.c), max4(l.b, l.d));
  const float32x2_t low = vget_low_f32(x);
  const float32x2_t high = vget_high_f32(x);
  const float32x2_t y = vbsl_f32(vcgt_f32(low, high), low, high);
  const float first = vget_lane_f32(y, 0);
  const float second = vget_lane_f32(y, 1);
  return first > second ? first : second;
}
inline std::int32_t sum(Ints x) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d)));
}

}  // namespace
}  // namespace headrace
