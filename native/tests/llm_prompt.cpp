// The kernels for prompts against products in double of the same rounded numbers.
#include <cmath>
#include <vector>

#include "check.hpp"
#include "headrace/llm/ops.hpp"
#include "headrace/llm/prompt.hpp"
#include "llm_bits.hpp"
#if defined(__x86_64__)
#include "llm_prompt_tiles.hpp"
#endif
#include "llm_weights.hpp"

namespace {

using namespace headrace::llm;
using headrace::Isa;

std::vector<const PromptKernels*> kernels() {
  std::vector<const PromptKernels*> found;
  for (const Isa isa : headrace::supported_isas()) {
    if (const PromptKernels* own = prompt_kernels(isa)) found.push_back(own);
  }
#if defined(__x86_64__)
  const headrace::CpuFeatures& cpu = headrace::features();
  if (cpu.avx512bf16 && cpu.avx512bw && cpu.avx512vl && cpu.avx512vnni) found.push_back(&prompt_emulated);
#endif
  return found;
}

/// To nearest, ties to even.
double brain(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0x7FFFU + (bits >> 16U & 1U)) & 0xFFFF0000U;
  std::memcpy(&x, &bits, sizeof bits);
  return x;
}

struct Prompt {
  Prompt(std::mt19937& random, std::size_t n_rows, std::size_t cols)
      : values(bits::row(random, n_rows * cols)), memory(bytes(2 * prompt_row_size(n_rows, cols / 32))) {
    std::memset(memory.get(), 0, 2 * prompt_row_size(n_rows, cols / 32));
    rows = {reinterpret_cast<std::uint16_t*>(memory.get()), cols / 32};
  }
  std::vector<float> values;
  Bytes memory;
  PromptRows rows;
};

/// The rows of `weights` times row `i` of `x`, of numbers rounded to bfloat16, and how far a sum may be from that:
/// float additions, and a weight that another order of operations rounds to the neighbour.
struct Want {
  Want(const PackedMatrix& weights, const Prompt& x, std::size_t row, std::size_t i) {
    std::vector<float> w(weights.cols);
    unpack_row(weights, row, w.data());
    for (std::size_t j = 0; j < w.size(); ++j) {
      const double term = brain(w[j]) * brain(x.values[i * w.size() + j]);
      value += term;
      slack += 1e-6 * std::fabs(term);
      largest = std::max(largest, std::fabs(term));
    }
    slack += largest / 64;
  }
  double value = 0, slack = 0, largest = 0;
};

}  // namespace

TEST(llm_prompt_linear_is_close_to_double_and_rows_do_not_depend_on_their_company) {
  std::mt19937 random(31);
  for (const PromptKernels* kernel : kernels()) {
    for (const Format format : formats) {
      for (const std::size_t n : {1, 16, 17, 40, 71}) {
        const std::size_t n_weights = 1 + random() % 75;
        const std::size_t cols = 32 * (1 + random() % 5);
        const Matrix matrix(random, format, n_weights, cols, n % 2 == 0 ? 0.25F : 1.0F, Kind::usual);
        Prompt x(random, n, cols);
        for (std::size_t i = 0; i < n; ++i) kernel->convert(x.values.data() + i * cols, i, x.rows);
        const std::size_t stride = n_weights + 3;
        const Store store = n % 3 == 0 ? Store::assign : Store::add;
        std::vector<float> out(n * stride, 2.0F);
        std::vector<float> parts = out;
        const Bytes pair = bytes(2 * pair_size(cols / 32));
        auto* expanded = reinterpret_cast<std::uint16_t*>(pair.get());
        for (std::size_t p = 0; p < pairs_of(matrix.packed); ++p) {
          kernel->expand(matrix.packed, p, expanded);
          kernel->linear(matrix.packed, p, expanded, x.rows, {0, n}, out.data() + p * 32, stride, store);
          for (std::size_t from = 0; from < n; from += 16) {
            const RowRange rows{from, std::min(n, from + 16)};
            kernel->linear(matrix.packed, p, expanded, x.rows, rows, parts.data() + p * 32, stride, store);
          }
        }
        CHECK(bits::same(out, parts));
        for (std::size_t i = 0; i < n; ++i) {
          for (std::size_t r = 0; r < stride; ++r) {
            if (r >= n_weights) {
              CHECK(out[i * stride + r] == 2.0F);
              continue;
            }
            const Want want(matrix.packed, x, r, i);
            const double before = store == Store::add ? 2.0 : 0.0;
            CHECK(std::fabs(out[i * stride + r] - before - want.value) <= want.slack + 1e-5);
          }
        }
      }
    }
  }
}

TEST(llm_prompt_gated_is_close_to_double) {
  std::mt19937 random(32);
  const Activate activate = ops(Isa::scalar).silu_mul;
  for (const PromptKernels* kernel : kernels()) {
    for (const std::size_t units : {16, 48, 64}) {
      const std::size_t n = 37;
      const std::size_t cols = 96;
      const Matrix gate(random, q4_affine, units, cols, 0.5F, Kind::usual);
      const Matrix up(random, q6_narrow, units, cols, 1.0F, Kind::usual);
      Prompt x(random, n, cols);
      Prompt out(random, n, (units + 31) / 32 * 32);
      for (std::size_t i = 0; i < n; ++i) kernel->convert(x.values.data() + i * cols, i, x.rows);
      const Bytes scratch = bytes(4 * pair_size(cols / 32));
      auto* gates = reinterpret_cast<std::uint16_t*>(scratch.get());
      std::uint16_t* ups = gates + pair_size(cols / 32);
      for (std::size_t p = 0; p < pairs_of(gate.packed); ++p) {
        kernel->expand(gate.packed, p, gates);
        kernel->expand(up.packed, p, ups);
        kernel->gated(gate.packed, up.packed, p, gates, ups, x.rows, {0, n}, activate, out.rows);
      }
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t r = 0; r < (units + 31) / 32 * 32; ++r) {
          const std::uint32_t bits = static_cast<std::uint32_t>(out.rows.tile(i, r / 32)[i % 16 * 32 + r % 32]) << 16U;
          float got = 0;
          std::memcpy(&got, &bits, sizeof got);
          if (r >= units) {
            CHECK(got == 0.0F);
            continue;
          }
          const Want g(gate.packed, x, r, i);
          const Want u(up.packed, x, r, i);
          const double want = g.value / (1 + std::exp(-g.value)) * u.value;
          const double slack = 1.2 * g.slack * std::fabs(u.value) + std::fabs(g.value) * u.slack + g.slack * u.slack;
          CHECK(std::fabs(got - want) <= slack + std::fabs(want) / 128 + 1e-5);
        }
      }
    }
  }
}

TEST(llm_prompt_kernels_are_there_with_amx_alone) {
  for (const Isa isa : headrace::supported_isas()) CHECK((prompt_kernels(isa) != nullptr) == (isa == Isa::amx));
}
