// Every matrix kernel against the scalar one, to the bit, and the scalar one against a product in double.
#include <cmath>

#include "check.hpp"
#include "headrace/error.hpp"
#include "headrace/llm/matmul.hpp"
#include "llm_bits.hpp"
#include "llm_tiles.hpp"
#include "llm_weights.hpp"

namespace {

using namespace headrace::llm;
using headrace::Isa;

/// Quantised rows in memory of their own; every third block or so has fine codes.
struct Rows {
  Rows(std::mt19937& random, std::size_t rows, std::size_t cols, Kind kind)
      : codes(rows * cols / 32), scales(rows * cols / 32) {
    const std::size_t n = codes.size();
    const std::vector<float> scale = kind == Kind::nasty ? bits::nasty_row(random, n, 9) : bits::row(random, n, 0.01F);
    const auto some = [&](int most, bool positive) {
      if (kind == Kind::extreme) return positive ? most : -most;
      return static_cast<int>(random() % static_cast<unsigned>(2 * most + 1)) - most;
    };
    for (std::size_t b = 0; b < n; ++b) {
      scales[b].scale = scale[b];
      scales[b].fine = random() % 3 == 0;
      for (std::size_t i = 0; i < 32; ++i) {
        const int coarse = some(127, b % 2 == 0);
        const int fine = scales[b].fine ? some(8, b % 4 < 2) : 0;
        codes[b].coarse[i] = static_cast<std::int8_t>(coarse);
        codes[b].fine[i] = static_cast<std::int8_t>(fine);
        std::int16_t& half = scales[b].halves[i / 16];
        half = static_cast<std::int16_t>(half + 16 * coarse + fine);
      }
      scales[b].sum = scale[b] * static_cast<float>(scales[b].halves[0] + scales[b].halves[1]);
    }
    view = {codes.data(), scales.data(), cols / 32};
  }
  /// What stands for value i of all.
  [[nodiscard]] double value(std::size_t i) const {
    const QuantisedCodes& at = codes[i / 32];
    return static_cast<double>(scales[i / 32].scale) * (16 * at.coarse[i % 32] + at.fine[i % 32]);
  }
  std::vector<QuantisedCodes> codes;
  std::vector<QuantisedScale> scales;
  Activations view;
};

struct Span {
  std::size_t first_strip, last_strip, first_row, n_rows;
  Store store;
};

/// What a kernel makes of an output that is full of numbers; there is a margin of it around each row.
std::vector<float> run(Matmul kernel, const Matrix& matrix, const Rows& x, const Span& span) {
  const std::size_t stride = (span.last_strip - span.first_strip) * strip_rows + 3;
  std::vector<float> out(span.n_rows * stride);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(i % 7) * 0.3F - 1;
  const Bytes scratch = bytes(matmul_scratch_bytes(matrix.packed.cols));
  kernel(matrix.packed, span.first_strip, span.last_strip, x.view, span.first_row, span.n_rows, out.data(), stride,
         span.store, scratch.get());
  return out;
}

#if defined(__x86_64__)
HEADRACE_MATMUL(emulated_amx) {
  matmul_tiles_emulated(weights, first_strip, last_strip, x, first_row, n_rows, out, stride, store, scratch);
  CHECK(tile_faults() == 0);
}
#endif

struct Kernel {
  std::string name;
  Matmul run;
};

/// Every kernel this processor can run, and AMX emulated.
std::vector<Kernel> kernels() {
  std::vector<Kernel> found;
  for (const Isa isa : headrace::supported_isas()) {
    found.push_back({std::string(headrace::isa_name(isa)), matmul(isa)});
#if defined(__x86_64__)
    if (isa == Isa::avx512vnni) found.push_back({"emulated amx", emulated_amx});
#endif
  }
  return found;
}

void check_all(const Matrix& matrix, const Rows& x, const Span& span) {
  const std::vector<float> want = run(matmul(Isa::scalar), matrix, x, span);
  for (const Kernel& kernel : kernels()) {
    const bool equal = bits::same(run(kernel.run, matrix, x, span), want);
    CHECK(equal);
    if (equal) continue;
    const Format f = matrix.packed.format;
    std::printf("  %s, codes of %zu bytes, group %d, zero %d: %u x %u, %zu rows\n", kernel.name.c_str(),
                code_bytes(f.codes), f.group, f.zero, matrix.packed.rows, matrix.packed.cols, span.n_rows);
  }
}

}  // namespace

TEST(llm_matmul_every_isa_gives_the_bits_of_the_scalar_one) {
  std::mt19937 random(7);
  for (const Format format : formats) {
    for (std::size_t n = 1; n <= 130; n += n < 40 ? 1 : 29) {
      const Kind kind = n % 3 == 0 ? Kind::nasty : n % 3 == 1 ? Kind::usual : Kind::extreme;
      const std::size_t rows = 1 + random() % 70;
      const std::size_t cols = 32 * (1 + random() % 6);
      const Matrix matrix(random, format, rows, cols, n % 4 == 0 ? 0.25F : 1.0F, kind);
      const Rows x(random, n + 2, cols, kind);
      const std::size_t strips = matrix.packed.strips();
      const std::size_t first = random() % strips;
      check_all(matrix, x, {0, strips, 2, n, Store::assign});
      check_all(matrix, x, {first, strips, 0, n, Store::add});
      check_all(matrix, x, {0, first, 1, n, Store::add});
    }
  }
}

TEST(llm_matmul_extremes_do_not_saturate) {
  // All codes 0, or all of them the largest, against activations of one sign: the largest sums there are.
  std::mt19937 random(8);
  for (const Format format : formats) {
    for (const std::size_t n : {1, 5, 8, 16, 17, 33, 113}) {
      for (const std::size_t cols : {32, 96, 512}) {
        const Matrix matrix(random, format, 32 + 15, cols, 1.0F, Kind::extreme);
        const Rows x(random, n, cols, Kind::extreme);
        check_all(matrix, x, {0, 3, 0, n, Store::assign});
      }
    }
  }
}

TEST(llm_matmul_rows_do_not_depend_on_their_company) {
  std::mt19937 random(9);
  for (const Format format : formats) {
    const Matrix matrix(random, format, 40, 160, 0.5F, Kind::usual);
    const Rows x(random, 110, 160, Kind::usual);
    for (const Kernel& kernel : kernels()) {
      const std::vector<float> together = run(kernel.run, matrix, x, {0, 3, 0, 110, Store::assign});
      const std::size_t stride = together.size() / 110;
      for (const std::size_t row : {0, 1, 15, 16, 47, 64, 109}) {
        const std::vector<float> alone = run(kernel.run, matrix, x, {0, 3, row, 1, Store::assign});
        for (std::size_t r = 0; r < 40; ++r) CHECK(bits::same(alone[r], together[row * stride + r]));
      }
    }
  }
}

TEST(llm_matmul_is_close_to_a_product_in_double) {
  std::mt19937 random(10);
  for (const Format format : formats) {
    const std::size_t cols = 288;
    const Matrix matrix(random, format, 21, cols, 0.125F, Kind::usual);
    const Rows x(random, 4, cols, Kind::usual);
    const std::vector<float> got = run(matmul(Isa::scalar), matrix, x, {0, 2, 0, 4, Store::assign});
    const std::size_t stride = got.size() / 4;
    std::vector<float> weights(cols);
    for (std::size_t r = 0; r < 21; ++r) {
      unpack_row(matrix.packed, r, weights.data());
      for (std::size_t i = 0; i < 4; ++i) {
        double want = 0;
        double size = 0;
        for (std::size_t j = 0; j < cols; ++j) {
          const double term = static_cast<double>(weights[j]) * x.value(i * cols + j);
          want += term;
          size += std::fabs(term);
        }
        CHECK(std::fabs(static_cast<double>(got[i * stride + r]) - want) <= 1e-6 * size);
      }
    }
  }
}

TEST(llm_matmul_no_strips_or_rows_write_nothing) {
  std::mt19937 random(11);
  const Matrix matrix(random, q4_affine, 16, 32, 1.0F, Kind::usual);
  const Rows x(random, 1, 32, Kind::usual);
  for (const Kernel& kernel : kernels()) {
    float out = 42;
    const Bytes scratch = bytes(matmul_scratch_bytes(32));
    kernel.run(matrix.packed, 0, 1, x.view, 0, 0, &out, 16, Store::assign, scratch.get());
    kernel.run(matrix.packed, 1, 1, x.view, 0, 1, &out, 16, Store::assign, scratch.get());
    CHECK(out == 42);
  }
}

TEST(llm_matmul_of_a_foreign_processor_is_a_config_error) {
#if defined(__x86_64__)
  CHECK_THROWS(headrace::Error, matmul(Isa::dotprod));
#else
  CHECK_THROWS(headrace::Error, matmul(Isa::avx2));
#endif
}
