// The kernel for 128-bit vectors of ARM: a strip is four quarters of 4 rows, a vector holds 4 columns of such a
// quarter. It multiplies by smmla where that is compiled in, else by sdot, else by smlal, whose 16-bit sums are widened
// before they could overflow. All of these are signed, so codes of 8 bits have their zero subtracted.
#pragma once

#include <arm_neon.h>

#include "matmul_kernel.hpp"

namespace headrace::llm {
namespace {

inline uint8x16_t load(const std::byte* at) {
  return vld1q_u8(reinterpret_cast<const std::uint8_t*>(at));
}

inline float32x4_t load_half(const std::byte* at) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(reinterpret_cast<const std::uint8_t*>(at))));
}

/// Codes of quarter `q` of a block as bytes, step by step.
template <Format F>
inline void expand(const std::byte* block, int q, int8x16_t (&w)[8]) {
  uint8x16_t code[8];
  const std::byte* at = block + q * 16;
  if constexpr (F.codes == Codes::u8) {
    for (int s = 0; s < 8; ++s) code[s] = veorq_u8(load(at + s * 64), vdupq_n_u8(0x80));
  } else {
    for (int j = 0; j < 4; ++j) {
      const uint8x16_t pair = load(at + j * 64);
      code[j] = vandq_u8(pair, vdupq_n_u8(15));
      code[j + 4] = vshrq_n_u8(pair, 4);
    }
  }
  if constexpr (F.codes == Codes::u5) {
    static constexpr std::uint8_t bits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    static constexpr std::uint8_t bytes[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
    const uint8x16_t bit = vld1q_u8(bits);
    const uint8x16_t spread = vaddq_u8(vld1q_u8(bytes), vdupq_n_u8(static_cast<std::uint8_t>(q * 2)));
    for (int s = 0; s < 8; ++s) {  // a vector holds the masks of two steps
      const uint8x16_t index = vaddq_u8(spread, vdupq_n_u8(static_cast<std::uint8_t>(s % 2 * 8)));
      const uint8x16_t mask = vqtbl1q_u8(load(block + 256 + s / 2 * 16), index);
      code[s] = vorrq_u8(code[s], vandq_u8(vtstq_u8(mask, bit), vdupq_n_u8(16)));
    }
  }
  if constexpr (F.codes == Codes::u6) {
    const uint8x16_t two = vdupq_n_u8(0x30);
    for (int i = 0; i < 8; i += 4) {
      const uint8x16_t upper = load(at + 256 + i * 16);
      code[i] = vorrq_u8(code[i], vandq_u8(vshlq_n_u8(upper, 4), two));
      code[i + 1] = vorrq_u8(code[i + 1], vandq_u8(vshlq_n_u8(upper, 2), two));
      code[i + 2] = vorrq_u8(code[i + 2], vandq_u8(upper, two));
      code[i + 3] = vorrq_u8(code[i + 3], vandq_u8(vshrq_n_u8(upper, 2), two));
    }
  }
  for (int s = 0; s < 8; ++s) w[s] = vreinterpretq_s8_u8(code[s]);
}

#if defined(__ARM_FEATURE_MATMUL_INT8)

/// 32 activations of M rows: in pairs of rows (the last one may be its own partner), 8 columns of each in a vector.
template <int M>
struct Inputs {
  int8x16_t x[(M + 1) / 2][4];

  explicit Inputs(const std::int8_t* const (&rows)[M]) {
    for (int p = 0; p < (M + 1) / 2; ++p) {
      const std::int8_t* one = rows[2 * p];
      const std::int8_t* other = rows[2 * p + 1 < M ? 2 * p + 1 : 2 * p];
      for (int k = 0; k < 4; ++k) x[p][k] = vcombine_s8(vld1_s8(one + 8 * k), vld1_s8(other + 8 * k));
    }
  }
};

/// Codes of a quarter in pairs of rows, 8 columns of each in a vector: what smmla takes.
inline void arrange(int8x16_t (&w)[8]) {
  for (int k = 0; k < 4; ++k) {
    const int32x4_t low = vreinterpretq_s32_s8(w[2 * k]);
    const int32x4_t high = vreinterpretq_s32_s8(w[2 * k + 1]);
    w[2 * k] = vreinterpretq_s8_s32(vzip1q_s32(low, high));
    w[2 * k + 1] = vreinterpretq_s8_s32(vzip2q_s32(low, high));
  }
}

/// The sums of codes * activations of group g, for each of M rows 4 weights.
template <Format F, int M>
inline void dot(const int8x16_t (&w)[8], const Inputs<M>& in, int g, int32x4_t (&sum)[M]) {
  constexpr int pieces = 4 / groups<F>;
  for (int p = 0; p < (M + 1) / 2; ++p) {
    int32x4_t upper = vdupq_n_s32(0);  // weights 0 and 1 of the quarter, each times both rows
    int32x4_t lower = vdupq_n_s32(0);
    for (int k = g * pieces; k < (g + 1) * pieces; ++k) {
      upper = vmmlaq_s32(upper, w[2 * k], in.x[p][k]);
      lower = vmmlaq_s32(lower, w[2 * k + 1], in.x[p][k]);
    }
    sum[2 * p] = vuzp1q_s32(upper, lower);
    if (2 * p + 1 < M) sum[2 * p + 1] = vuzp2q_s32(upper, lower);
  }
}

#else

/// 32 activations of M rows.
template <int M>
struct Inputs {
  int8x16_t x[M][2];

  explicit Inputs(const std::int8_t* const (&rows)[M]) {
    for (int m = 0; m < M; ++m) {
      x[m][0] = vld1q_s8(rows[m]);
      x[m][1] = vld1q_s8(rows[m] + 16);
    }
  }
};

inline void arrange(int8x16_t (&)[8]) {}

#if defined(__ARM_FEATURE_DOTPROD)

/// Steps of one half (16 columns) of a block.
template <Format F>
inline int32x4_t half_dot(const int8x16_t* w, int8x16_t x) {
  int32x4_t sum = vdotq_laneq_s32(vdupq_n_s32(0), w[0], x, 0);
  sum = vdotq_laneq_s32(sum, w[1], x, 1);
  sum = vdotq_laneq_s32(sum, w[2], x, 2);
  return vdotq_laneq_s32(sum, w[3], x, 3);
}

#else

/// Steps of one half (16 columns) of a block. 16 bits hold four products of codes up to 6 bits, two of 8 bits.
template <Format F>
inline int32x4_t half_dot(const int8x16_t* w, int8x16_t x) {
  const int32x4_t fours = vreinterpretq_s32_s8(x);
  const int8x16_t at[4] = {
      vreinterpretq_s8_s32(vdupq_laneq_s32(fours, 0)), vreinterpretq_s8_s32(vdupq_laneq_s32(fours, 1)),
      vreinterpretq_s8_s32(vdupq_laneq_s32(fours, 2)), vreinterpretq_s8_s32(vdupq_laneq_s32(fours, 3))};
  constexpr int run = F.codes == Codes::u8 ? 2 : 4;
  int32x4_t upper = vdupq_n_s32(0);  // two sums for each of the first two weights
  int32x4_t lower = vdupq_n_s32(0);
  for (int s = 0; s < 4; s += run) {
    int16x8_t first = vdupq_n_s16(0);
    int16x8_t second = vdupq_n_s16(0);
    for (int i = s; i < s + run; ++i) {
      first = vmlal_s8(first, vget_low_s8(w[i]), vget_low_s8(at[i]));
      second = vmlal_high_s8(second, w[i], at[i]);
    }
    upper = vpadalq_s16(upper, first);
    lower = vpadalq_s16(lower, second);
  }
  return vpaddq_s32(upper, lower);
}

#endif

/// The sums of codes * activations of group g, for each of M rows 4 weights.
template <Format F, int M>
inline void dot(const int8x16_t (&w)[8], const Inputs<M>& in, int g, int32x4_t (&sum)[M]) {
  for (int m = 0; m < M; ++m) {
    sum[m] = half_dot<F>(w + 4 * g, in.x[m][g]);
    if constexpr (groups<F> == 1) sum[m] = vaddq_s32(sum[m], half_dot<F>(w + 4, in.x[m][1]));
  }
}

#endif

/// Add the products of quarter `q` of a block, its codes in `w`, with block `b` of each of M rows to acc[0..M)[q].
template <Format F, int M>
inline void add_blocks(const int8x16_t (&w)[8], const Inputs<M>& coarse, const QuantisedRow (&x)[M], std::size_t b,
                       const float32x4_t* tables, float32x4_t (&acc)[M][4], int q) {
  for (int g = 0; g < groups<F>; ++g) {
    int32x4_t sum[M];
    dot<F>(w, coarse, g, sum);
    for (int m = 0; m < M; ++m) {
      const QuantisedScale& by = x[m].scales[b];
      sum[m] = vshlq_n_s32(sum[m], 4);
      if (by.fine) {
        const std::int8_t* const fine[1] = {x[m].codes[b].fine};
        int32x4_t rest[1];
        dot<F>(w, Inputs<1>(fine), g, rest);
        sum[m] = vaddq_s32(sum[m], rest[0]);
      }
      if constexpr (F.zero != 0 && F.codes != Codes::u8) sum[m] = vaddq_s32(sum[m], vdupq_n_s32(origin<F>(by, g)));
      acc[m][q] = vfmaq_f32(acc[m][q], vcvtq_f32_s32(sum[m]), vmulq_n_f32(tables[g], by.scale));
    }
  }
  for (int g = 0; F.affine && g < groups<F>; ++g) {
    for (int m = 0; m < M; ++m) {
      acc[m][q] = vfmaq_n_f32(acc[m][q], tables[groups<F> + g], sum_of<F>(x[m].scales[b], g));
    }
  }
}

/// One strip times M rows.
template <Format F, int M>
void product(const std::byte* strip, std::size_t blocks, const QuantisedRow (&x)[M], float32x4_t (&acc)[M][4]) {
  for (auto& row : acc) {
    for (auto& quarter : row) quarter = vdupq_n_f32(0);
  }
  for (std::size_t b = 0; b < blocks; ++b, strip += block_bytes(F)) {
    stream<F>(strip);
    const std::int8_t* coarse[M];
    for (int m = 0; m < M; ++m) coarse[m] = x[m].codes[b].coarse;
    const Inputs<M> in(coarse);
    for (int q = 0; q < 4; ++q) {
      int8x16_t w[8];
      expand<F>(strip, q, w);
      arrange(w);
      float32x4_t table[tables<F>];
      for (int t = 0; t < tables<F>; ++t) table[t] = load_half(strip + code_bytes(F.codes) + t * 32 + q * 8);
      add_blocks<F, M>(w, in, x, b, table, acc, q);
    }
  }
}

template <Format F>
struct Rows {
  static constexpr int most = 8;

  template <int M>
  static void run(const Call& call, std::size_t strip, std::size_t first) {
    QuantisedRow x[M];
    call.rows(first, x);
    float32x4_t acc[M][4];
    product<F, M>(call.strip(strip), call.weights->blocks(), x, acc);
    const std::size_t lanes = call.lanes(strip);
    for (std::size_t m = 0; m < M; ++m) {
      float* at = call.at(strip, first + m);
      for (std::size_t q = 0; q < 4; ++q) {
        const float32x4_t value = vmulq_n_f32(acc[m][q], call.weights->multiplier);
        if (q * 4 + 4 <= lanes) {
          vst1q_f32(at + q * 4, call.store == Store::add ? vaddq_f32(vld1q_f32(at + q * 4), value) : value);
        } else {
          float last[4];
          vst1q_f32(last, value);
          for (std::size_t i = q * 4; i < lanes; ++i) {
            at[i] = call.store == Store::add ? at[i] + last[i - q * 4] : last[i - q * 4];
          }
        }
      }
    }
  }
};

inline void multiply(const Call& call) {
  with_format(call.weights->format, [&]<Format F>() {
    for (std::size_t strip = call.first_strip; strip < call.last_strip; ++strip) sweep<Rows<F>>(call, strip);
  });
}

}  // namespace
}  // namespace headrace::llm
