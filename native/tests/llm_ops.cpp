#include <algorithm>

#include "check.hpp"
#include "headrace/error.hpp"
#include "headrace/llm/ops.hpp"
#include "llm_bits.hpp"

namespace {

using headrace::Isa;
using headrace::llm::ops;
using headrace::llm::Ops;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

using headrace::llm::QuantisedCodes;
using headrace::llm::QuantisedScale;

/// What quantise() writes, in memory of its own.
struct Quantised {
  Quantised(const Ops& op, const std::vector<float>& x, bool fine) : codes(x.size() / 32), scales(x.size() / 32) {
    op.quantise(x.data(), x.size(), fine, {codes.data(), scales.data()});
  }
  bool operator==(const Quantised& other) const {
    for (std::size_t b = 0; b < codes.size(); ++b) {
      const QuantisedScale& x = scales[b];
      const QuantisedScale& y = other.scales[b];
      if (std::memcmp(&codes[b], &other.codes[b], sizeof codes[b]) != 0) return false;
      if (!bits::same(x.scale, y.scale) || !bits::same(x.sum, y.sum) || x.fine != y.fine) return false;
      if (x.halves[0] != y.halves[0] || x.halves[1] != y.halves[1]) return false;
    }
    return true;
  }
  /// What stands for value i.
  [[nodiscard]] double value(std::size_t i) const {
    const QuantisedCodes& at = codes[i / 32];
    return static_cast<double>(scales[i / 32].scale) * (16 * at.coarse[i % 32] + at.fine[i % 32]);
  }
  std::vector<QuantisedCodes> codes;
  std::vector<QuantisedScale> scales;
};

/// Every float operation over rows x and y, one after the other in one vector.
std::vector<float> run_all(const Ops& op, const std::vector<float>& x, const std::vector<float>& y) {
  const std::size_t n = x.size();
  std::vector<float> all;
  const auto keep = [&](auto run) {
    std::vector<float> out(n + 1, 42.0F);  // the one past the end must stay
    run(out.data());
    all.insert(all.end(), out.begin(), out.end());
  };
  keep([&](float* out) { op.rms_norm(x.data(), y.data(), n, 1e-5F, out); });
  keep([&](float* out) { op.add(x.data(), y.data(), n, out); });
  keep([&](float* out) { op.silu_mul(x.data(), y.data(), n, out); });
  keep([&](float* out) { op.gelu_tanh_mul(x.data(), y.data(), n, out); });
  keep([&](float* out) { op.exp(x.data(), n, out); });
  keep([&](float* out) { op.tanh(x.data(), n, out); });
  keep([&](float* out) {
    std::copy(x.begin(), x.end(), out);
    op.softcap(out, n, 30.0F);
  });
  keep([&](float* out) {
    std::vector<std::uint16_t> halves(n);
    op.to_f16(x.data(), n, halves.data());
    op.from_f16(halves.data(), n, out);
  });
  all.push_back(static_cast<float>(op.argmax(x.data(), n)));
  return all;
}

}  // namespace

TEST(llm_ops_every_isa_gives_the_bits_of_the_scalar_one) {
  std::mt19937 random(1);
  for (const std::size_t n : {0, 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 576, 640, 1000, 2049}) {
    for (const unsigned every : {2U, 10U, 1000000U}) {
      const std::vector<float> x = bits::nasty_row(random, n, every);
      const std::vector<float> y = bits::nasty_row(random, n, every * 2);
      const std::vector<float> want = run_all(ops(Isa::scalar), x, y);
      for (const Isa isa : headrace::supported_isas()) CHECK(bits::same(run_all(ops(isa), x, y), want));
      if (n % 32 != 0) continue;
      for (const bool fine : {false, true}) {
        const Quantised scalar(ops(Isa::scalar), x, fine);
        for (const Isa isa : headrace::supported_isas()) CHECK(Quantised(ops(isa), x, fine) == scalar);
      }
    }
  }
}

TEST(llm_ops_rms_norm_is_close_to_double) {
  std::mt19937 random(2);
  for (const std::size_t n : {1, 16, 57, 576, 4096, 16384}) {
    const std::vector<float> x = bits::row(random, n, 7.0F);
    const std::vector<float> weight = bits::row(random, n);
    double squares = 0.0;
    for (const float v : x) squares += static_cast<double>(v) * v;
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
    for (const Isa isa : headrace::supported_isas()) {
      std::vector<float> out(n);
      ops(isa).rms_norm(x.data(), weight.data(), n, 1e-5F, out.data());
      for (std::size_t i = 0; i < n; ++i) {
        const double want = x[i] * scale * weight[i];
        CHECK(std::fabs(out[i] - want) <= 1e-6 * std::fabs(want));
      }
    }
  }
}

TEST(llm_ops_exponentials_are_right_to_a_few_ulps) {
  for (const Isa isa : headrace::supported_isas()) {
    double worst_exp = 0.0;
    double worst_tanh = 0.0;
    double worst_silu = 0.0;
    double worst_gelu = 0.0;
    const float one = 1.0F;
    const std::size_t steps = isa == Isa::scalar ? 20001 : 200001;
    for (std::size_t i = 0; i < steps; ++i) {
      const float x = static_cast<float>(-104.0 + 193.0 * static_cast<double>(i) / static_cast<double>(steps - 1));
      const float small = x * x * x * 1e-5F;  // crowded around 0, up to 11
      float out = 0.0F;
      ops(isa).exp(&x, 1, &out);
      if (x < 88.7F && x > -103.0F) worst_exp = std::max(worst_exp, bits::ulps(out, std::exp(static_cast<double>(x))));
      ops(isa).tanh(&small, 1, &out);
      worst_tanh = std::max(worst_tanh, bits::ulps(out, std::tanh(static_cast<double>(small))));
      ops(isa).silu_mul(&small, &one, 1, &out);
      const double s = small;
      worst_silu = std::max(worst_silu, bits::ulps(out, s / (1.0 + std::exp(-s))));
      ops(isa).gelu_tanh_mul(&small, &one, 1, &out);
      const double u = std::sqrt(2.0 / std::acos(-1.0)) * (s + 0.044715 * s * s * s);
      const double gelu = s / (1.0 + std::exp(-2.0 * u));
      // The rounding of u, |u| * 2^-24, comes back multiplied by e^-2u where the sigmoid is small.
      worst_gelu = std::max(worst_gelu, bits::ulps(out, gelu) / (1.0 + std::max(0.0, -2.0 * u)));
    }
    CHECK(worst_exp < 1.1);
    CHECK(worst_tanh < 2.0);
    CHECK(worst_silu < 4.0);
    CHECK(worst_gelu < 4.0);
  }
}

TEST(llm_ops_exponentials_know_the_infinities) {
  for (const Isa isa : headrace::supported_isas()) {
    const std::vector<float> x = {kInfinity, -kInfinity, std::nanf(""), 0.0F, 89.0F, -200.0F, 1e-45F};
    const std::vector<float> ones(x.size(), 1.0F);
    std::vector<float> out(x.size());
    ops(isa).exp(x.data(), x.size(), out.data());
    CHECK(out[0] == kInfinity && out[1] == 0.0F && std::isnan(out[2]) && out[3] == 1.0F);
    CHECK(out[4] == kInfinity && out[5] == 0.0F && out[6] == 1.0F);
    ops(isa).tanh(x.data(), x.size(), out.data());
    CHECK(out[0] == 1.0F && out[1] == -1.0F && std::isnan(out[2]) && out[3] == 0.0F && out[6] == 1e-45F);
    ops(isa).silu_mul(x.data(), ones.data(), x.size(), out.data());
    CHECK(out[0] == kInfinity && std::isnan(out[1]) && std::isnan(out[2]) && out[3] == 0.0F && out[4] == 89.0F);
    ops(isa).gelu_tanh_mul(x.data(), ones.data(), x.size(), out.data());
    CHECK(out[0] == kInfinity && std::isnan(out[1]) && std::isnan(out[2]) && out[3] == 0.0F && out[4] == 89.0F);
  }
}

TEST(llm_ops_quantise_is_within_half_a_step_and_sums_are_exact) {
  std::mt19937 random(3);
  for (const Isa isa : headrace::supported_isas()) {
    for (int round = 0; round < 50; ++round) {
      const std::vector<float> x = bits::row(random, 96, std::ldexp(1.0F, round * 3 - 75));
      for (const bool fine : {false, true}) {
        const Quantised out(ops(isa), x, fine);
        for (std::size_t b = 0; b < out.codes.size(); ++b) {
          const QuantisedScale& scale = out.scales[b];
          const double step = static_cast<double>(scale.scale) * (scale.fine ? 1 : 16);
          int sums[2] = {0, 0};
          int top = 0;
          for (std::size_t i = 0; i < 32; ++i) {
            const int code = out.codes[b].coarse[i];
            CHECK(std::fabs(x[32 * b + i] - out.value(32 * b + i)) <= 0.501 * step + 1e-6 * std::fabs(x[32 * b + i]));
            CHECK(std::abs(static_cast<int>(out.codes[b].fine[i])) <= (scale.fine ? 8 : 0));
            sums[i / 16] += 16 * code + out.codes[b].fine[i];
            top = std::max(top, std::abs(code));
          }
          CHECK(top == 127);
          CHECK(scale.halves[0] == sums[0] && scale.halves[1] == sums[1]);
          CHECK(scale.sum == scale.scale * static_cast<float>(sums[0] + sums[1]));
          CHECK(scale.fine == fine);
        }
      }
    }
  }
}

TEST(llm_ops_quantise_rounds_half_to_even_and_survives_what_it_cannot_represent) {
  for (const Isa isa : headrace::supported_isas()) {
    std::vector<float> x(32 * 5, 0.0F);
    const float halves[] = {127.0F, 0.5F, 1.5F, -2.5F, -3.5F, 126.5F};
    std::copy(std::begin(halves), std::end(halves), x.begin());
    x[32 + 5] = std::nanf("");
    x[64 + 31] = -kInfinity;
    x[96] = 1e-40F;  // its inverse overflows
    x[128 + 3] = 3.4e38F;
    x[128 + 4] = -3.4e38F;
    for (const bool fine : {false, true}) {
      const Quantised out(ops(isa), x, fine);
      const int want[] = {127, 0, 2, -2, -4, 126};
      for (std::size_t i = 0; i < std::size(want); ++i) CHECK(out.codes[0].coarse[i] == want[i]);
      CHECK(out.scales[0].scale == 1.0F / 16);
      for (const std::size_t b : {1, 2}) {
        const QuantisedScale& scale = out.scales[b];
        CHECK(std::isnan(scale.scale) && std::isnan(scale.sum) && scale.halves[0] == 0);
        for (const std::int8_t code : out.codes[b].coarse) CHECK(code == 0);
        for (const std::int8_t code : out.codes[b].fine) CHECK(code == 0);
      }
      CHECK(out.scales[3].scale == 0.0F && out.codes[3].coarse[0] == 0);
      CHECK(out.codes[4].coarse[3] == 127 && out.codes[4].coarse[4] == -127 && out.scales[4].halves[0] == 0);
    }
  }
}

TEST(llm_ops_argmax_takes_the_lowest_of_equals) {
  std::mt19937 random(4);
  for (const Isa isa : headrace::supported_isas()) {
    CHECK(ops(isa).argmax(nullptr, 0) == -1);
    for (int round = 0; round < 200; ++round) {
      std::vector<float> x(1 + random() % 100);
      for (float& v : x) v = static_cast<float>(random() % 4);
      CHECK(ops(isa).argmax(x.data(), x.size()) == std::max_element(x.begin(), x.end()) - x.begin());
      for (float& v : x) v = -kInfinity;
      CHECK(ops(isa).argmax(x.data(), x.size()) == 0);
      const std::size_t at = random() % x.size();
      x[at] = round % 2 == 0 ? -1e38F : kInfinity;
      CHECK(ops(isa).argmax(x.data(), x.size()) == static_cast<std::int64_t>(at));
      x[random() % x.size()] = std::nanf("");
      CHECK(ops(isa).argmax(x.data(), x.size()) == -1);
    }
  }
}

TEST(llm_ops_half_precision_rounds_to_nearest_even) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  for (const Isa isa : headrace::supported_isas()) {
    std::vector<float> wide(all.size());
    std::vector<std::uint16_t> back(all.size());
    ops(isa).from_f16(all.data(), all.size(), wide.data());
    ops(isa).to_f16(wide.data(), wide.size(), back.data());
    for (std::size_t i = 0; i < all.size(); ++i) CHECK(back[i] == all[i] || std::isnan(wide[i]));
    for (std::size_t i = 0; i + 1 < 0x7C00;
         ++i) {  // between neighbours the tie goes to the even one, the rest to the nearest
      const float tie = 0.5F * (wide[i] + wide[i + 1]);
      const float x[] = {tie, std::nextafterf(tie, 0.0F), std::nextafterf(tie, kInfinity), -tie};
      std::uint16_t half[4];
      ops(isa).to_f16(x, 4, half);
      CHECK(half[0] == i + i % 2 && half[1] == i && half[2] == i + 1 && half[3] == (half[0] | 0x8000U));
    }
    const float edge[] = {65504.0F, 65519.9F, 65520.0F, 1e30F, kInfinity};
    std::uint16_t half[5];
    ops(isa).to_f16(edge, 5, half);
    CHECK(half[0] == 0x7BFF && half[1] == 0x7BFF && half[2] == 0x7C00 && half[3] == 0x7C00 && half[4] == 0x7C00);
  }
}

TEST(llm_ops_of_another_architecture_are_a_config_error) {
#if defined(__x86_64__)
  CHECK_THROWS(headrace::Error, ops(Isa::neon));
#else
  CHECK_THROWS(headrace::Error, ops(Isa::avx2));
#endif
}
