// What the matrix kernels of the vector instruction sets have in common: the call they serve, the walk over its rows,
// and the few terms of matmul.hpp's formula that are scalars. All of it is local to the one file it is compiled in: an
// instantiation shared between files could be what the linker keeps for processors that lack the instructions.
#pragma once

#include <cstring>

#include "matmul_isas.hpp"

namespace headrace::llm {
namespace {

/// Whether it pays soon to expand codes once for many rows.
template <Format F>
inline constexpr bool slow_to_expand = F.codes == Codes::u5 || F.codes == Codes::u6;

template <Format F>
inline constexpr int groups = block_cols / F.group;

/// Scales and minima of a block, each 16 numbers.
template <Format F>
inline constexpr int tables = groups<F> * (F.affine ? 2 : 1);

/// S strips widened: [block][codes [8][S][64] | float scales [g][S][16] | float minima [g][S][16]].
template <Format F, int S>
inline constexpr std::size_t wide_bytes = S * (512 + 64 * tables<F>);

struct Call {
  const PackedMatrix* weights;
  const Activations* x;
  std::size_t first_strip, last_strip, first_row, n_rows;
  float* out;
  std::size_t stride;
  Store store;
  std::byte* scratch;

  template <int M>
  void rows(std::size_t first, QuantisedRow (&rows)[M]) const {
    for (int m = 0; m < M; ++m) rows[m] = x->row(first_row + first + static_cast<std::size_t>(m));
  }

  [[nodiscard]] const std::byte* strip(std::size_t i) const { return weights->data + i * weights->strip_bytes(); }

  /// The strip to be read once all rows of `strip` and the n - 1 after it are done; null but for the first rows, which
  /// ask for it.
  [[nodiscard]] const std::byte* next(std::size_t strip, std::size_t n, std::size_t row) const {
    return row == 0 && strip + n < last_strip ? this->strip(strip + n) : nullptr;
  }

  /// Where the result of row `row` for `strip` goes.
  [[nodiscard]] float* at(std::size_t strip, std::size_t row) const {
    return out + row * stride + (strip - first_strip) * strip_rows;
  }

  /// Weight rows there are in `strip`.
  [[nodiscard]] std::size_t lanes(std::size_t strip) const {
    const std::size_t left = weights->rows - strip * strip_rows;
    return left < strip_rows ? left : strip_rows;
  }
};

/// All rows from `row` on of `strip`, as many at once as `Kernel` takes.
template <class Kernel, int M = Kernel::most>
void sweep(const Call& call, std::size_t strip, std::size_t row = 0) {
  for (; row + M <= call.n_rows; row += M) Kernel::template run<M>(call, strip, row);
  if constexpr (M > 1) sweep<Kernel, M - 1>(call, strip, row);
}

/// What is to be added to the sum of codes * x of group g: -zero * sum(x).
template <Format F>
inline std::int32_t origin(const QuantisedScale& x, int g) {
  return -static_cast<std::int32_t>(F.zero) * (groups<F> == 1 ? x.halves[0] + x.halves[1] : x.halves[g]);
}

/// What the minimum of group g is multiplied by.
template <Format F>
inline float sum_of(const QuantisedScale& x, int g) {
  return groups<F> == 1 ? x.sum : x.scale * static_cast<float>(x.halves[g]);
}

inline int four(const std::int8_t* codes) {
  int bits = 0;
  std::memcpy(&bits, codes, 4);
  return bits;
}

/// Ask for the `count` blocks at `block`, which are not needed at once.
template <Format F>
inline void fetch(const std::byte* block, std::size_t count = 1) {
  for (std::size_t line = 0; line < count * block_bytes(F); line += 64) __builtin_prefetch(block + line, 0, 2);
}

/// Of a stream of blocks, ask for the one some 20 to 40 after `block`. Measured, for weights in memory and in the last
/// cache: to ask 4 KiB ahead, or for one line of each block only, loses a third.
template <Format F>
inline void stream(const std::byte* block) {
  constexpr std::size_t distance = 12288;
  for (std::size_t line = 0; line < block_bytes(F); line += 64) __builtin_prefetch(block + distance + line);
}

/// run.operator()<F>() for the F that `format` is.
template <class Run>
void with_format(Format format, Run run) {
  if (format == q4_affine) return run.template operator()<q4_affine>();
  if (format == q4_symmetric) return run.template operator()<q4_symmetric>();
  if (format == q4_narrow) return run.template operator()<q4_narrow>();
  if (format == q5_affine) return run.template operator()<q5_affine>();
  if (format == q5_symmetric) return run.template operator()<q5_symmetric>();
  if (format == q6_narrow) return run.template operator()<q6_narrow>();
  run.template operator()<q8_symmetric>();
}

}  // namespace
}  // namespace headrace::llm
