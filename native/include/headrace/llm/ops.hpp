// Row operations of a language model between its matrix products: normalise, quantise, activate, add, pick the largest.
// One source is compiled for every instruction set and gives the same bits on each: only IEEE-exact operations and
// explicit fused multiply-adds, sums in one fixed order. (NaNs are NaNs everywhere, but their payload may differ.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "headrace/cpu.hpp"

namespace headrace::llm {

/// 32 activations: value i is about (16 * coarse[i] + fine[i]) * scale.
struct alignas(64) QuantisedCodes {
  std::int8_t coarse[32];  // -127..127
  std::int8_t fine[32];    // -8..8; all 0 in a block without fine codes
};

struct QuantisedScale {
  float scale;
  float sum;               // of the values
  std::int16_t halves[2];  // sums of 16 * coarse + fine, of 16 columns each
  bool fine;               // whether there are fine codes
};

inline constexpr std::size_t kQuantBlock = 32;

/// A row of activations: [cols / 32] of each.
struct QuantisedRow {
  QuantisedCodes* codes;
  QuantisedScale* scales;
};

/// No pointer needs an alignment. Outputs may be the inputs themselves where shapes agree; they must not overlap
/// otherwise. Nothing allocates or throws.
struct Ops {
  /// out[cols] = x / sqrt(mean(x^2) + eps) * weight. Source: Zhang & Sennrich 2019, RMSNorm.
  void (*rms_norm)(const float* x, const float* weight, std::size_t cols, float eps, float* out);

  /// Per 32 values: step = max|x| / 127, coarse code = round-half-even(x * (127 / max|x|)); with `fine`, what that
  /// leaves becomes fine codes of step / 16, which makes some 12 bits of 8. `cols` is a multiple of 32. A block that
  /// holds a NaN or an infinity gets scale (and sum) NaN and codes 0: what is computed from it is NaN. A block below
  /// 1e-32 gets scale 0 and codes 0.
  void (*quantise)(const float* x, std::size_t cols, bool fine, const QuantisedRow& out);

  /// out[n] = x + y.
  void (*add)(const float* x, const float* y, std::size_t n, float* out);

  /// out[n] = gate * sigmoid(gate) * up.
  void (*silu_mul)(const float* gate, const float* up, std::size_t n, float* out);

  /// out[n] = gate * sigmoid(2 sqrt(2 / pi) (gate + 0.044715 gate^3)) * up, which is the tanh form of GELU times up.
  /// Source: Hendrycks & Gimpel 2016, arXiv:1606.08415.
  void (*gelu_tanh_mul)(const float* gate, const float* up, std::size_t n, float* out);

  /// x[n] = cap * tanh(x / cap), in place; cap > 0.
  void (*softcap)(float* x, std::size_t n, float cap);

  /// Index of the largest value, the lowest one on a tie; -1 if there is a NaN or n is 0.
  std::int64_t (*argmax)(const float* x, std::size_t n);

  /// out[n] = e^x, tanh(x): for tests and for whoever needs the very same bits as the operations above.
  void (*exp)(const float* x, std::size_t n, float* out);
  void (*tanh)(const float* x, std::size_t n, float* out);

  /// Half precision, rounded to nearest even; overflow is infinity. For tests and whoever writes pages.
  void (*to_f16)(const float* x, std::size_t n, std::uint16_t* out);
  void (*from_f16)(const std::uint16_t* x, std::size_t n, float* out);
};

/// The operations compiled for `isa` (the best float set within it: `amx` runs AVX-512, `i8mm` runs NEON). Throws
/// config_error if this build has none for it. The processor must support it.
const Ops& ops(Isa isa);

}  // namespace headrace::llm
