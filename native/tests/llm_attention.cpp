#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>

#include "check.hpp"
#include "headrace/error.hpp"
#include "headrace/llm/attention.hpp"
#include "headrace/llm/kv.hpp"
#include "headrace/llm/ops.hpp"
#include "headrace/thread_pool.hpp"
#include "llm_bits.hpp"

namespace {

using headrace::Error;
using headrace::Isa;
using headrace::llm::AttentionCall;
using headrace::llm::AttentionKernels;
using headrace::llm::AttentionLayer;
using headrace::llm::AttentionPlan;
using headrace::llm::KvDtype;
using headrace::llm::KvPool;
using headrace::llm::StepSequence;

struct Model {
  std::size_t n_heads = 4, n_kv_heads = 2, head_dim = 32, pairs = 16;
  std::size_t window = 0;
  float softcap = 0.0F;
  bool interleaved = false, norm = false;
  KvDtype dtype = KvDtype::f16;
  float size = 1.0F;  // of the random queries, keys and values

  [[nodiscard]] std::size_t width() const { return (n_heads + 2 * n_kv_heads) * head_dim; }
  [[nodiscard]] float scale() const { return 1.0F / std::sqrt(static_cast<float>(head_dim)); }
};

/// Sequences with all their projections known beforehand, so that they can be computed in any chunks.
struct Text {
  Text(const Model& of, std::vector<std::size_t> with_lengths, unsigned seed) : model(of), lengths(with_lengths) {
    std::mt19937 random(seed);
    for (const std::size_t n : lengths) {
      qkv.push_back(bits::row(random, n * model.width(), model.size));
      n_blocks = std::max(n_blocks, (n + 15) / 16);
    }
    q_norm = bits::row(random, model.head_dim);
    k_norm = bits::row(random, model.head_dim);
    pages.resize(n_blocks * lengths.size() + 3);
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), random);
  }

  [[nodiscard]] std::vector<float> angles(std::size_t position, bool sine) const {
    std::vector<float> out(model.pairs);
    for (std::size_t i = 0; i < model.pairs; ++i) {
      const double angle =
          static_cast<double>(position) * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(model.pairs));
      out[i] = static_cast<float>(sine ? std::sin(angle) : std::cos(angle));
    }
    return out;
  }

  Model model;
  std::vector<std::size_t> lengths;
  std::vector<std::vector<float>> qkv;
  std::vector<float> q_norm, k_norm;
  std::vector<std::int32_t> pages;
  std::size_t n_blocks = 0;
};

/// (sequence, tokens) of a step.
using Chunks = std::vector<std::pair<std::size_t, std::size_t>>;

struct Runner {
  Runner(const Text& of, Isa isa, std::size_t n_threads, bool of_prompts = false)
      : text(of),
        prompt(of_prompts),
        kernels(headrace::llm::attention_kernels(isa)),
        pool({of.pages.size(), 3, of.model.n_kv_heads, of.model.head_dim, of.model.dtype}),
        plan(pool, of.model.n_heads, of.model.window, n_threads),
        threads(n_threads),
        done(of.lengths.size(), 0),
        out(of.lengths.size()) {
    const Model& m = text.model;
    layer = {1, m.n_heads, m.scale(), m.softcap, m.window, m.pairs, m.interleaved, nullptr, nullptr, 1e-6F};
    if (m.norm) {
      layer.q_norm = text.q_norm.data();
      layer.k_norm = text.k_norm.data();
    }
    for (std::size_t s = 0; s < out.size(); ++s) out[s].resize(text.lengths[s] * m.n_heads * m.head_dim, -7.0F);
    // What a page held before must not matter, not even a NaN.
    for (std::size_t page = 0; page < pool.n_pages(); ++page) {
      std::memset(pool.keys(page, 0, 0), 0xFF, pool.page_bytes());
    }
  }

  void step(const Chunks& chunks) {
    const Model& m = text.model;
    std::vector<StepSequence> sequences;
    std::vector<float> qkv, cos, sin;
    for (const auto& [s, n] : chunks) {
      const std::size_t row = qkv.size() / m.width();
      sequences.push_back({row, n, done[s], std::span(text.pages).subspan(s * text.n_blocks, text.n_blocks), prompt});
      const auto from = text.qkv[s].begin() + static_cast<std::ptrdiff_t>(done[s] * m.width());
      qkv.insert(qkv.end(), from, from + static_cast<std::ptrdiff_t>(n * m.width()));
      for (std::size_t t = 0; t < n; ++t) {
        for (const float x : text.angles(done[s] + t, false)) cos.push_back(x);
        for (const float x : text.angles(done[s] + t, true)) sin.push_back(x);
      }
    }
    const std::size_t out_width = m.n_heads * m.head_dim;
    std::vector<float> result(qkv.size() / m.width() * out_width, -9.0F);
    plan.build(sequences);
    const AttentionCall call{&plan,      &layer,     &pool,         qkv.data(), m.width(),
                             cos.data(), sin.data(), result.data(), out_width};
    phase(plan.n_writes(), [&](std::size_t u, float* scratch) { kernels.write(call, u, scratch); });
    phase(plan.n_units(), [&](std::size_t u, float* scratch) { kernels.run(call, u, scratch); });
    phase(plan.n_merges(), [&](std::size_t u, float*) { kernels.merge(call, u); });
    auto from = result.begin();
    for (const auto& [s, n] : chunks) {
      const auto count = static_cast<std::ptrdiff_t>(n * out_width);
      std::copy(from, from + count, out[s].begin() + static_cast<std::ptrdiff_t>(done[s] * out_width));
      from += count;
      done[s] += n;
    }
  }

  template <class Fn>
  void phase(std::size_t n, Fn fn) {
    threads.parallel_for(0, n, 1, [&](std::size_t from, std::size_t to) {
      struct Free {
        void operator()(float* memory) const { std::free(memory); }
      };
      // Memory of exactly the promised size, so that a sanitizer sees the first float beyond it.
      const std::unique_ptr<float, Free> scratch(
          static_cast<float*>(std::aligned_alloc(64, plan.scratch_floats() * sizeof(float))));
      std::fill_n(scratch.get(), plan.scratch_floats(), std::nanf(""));
      for (; from < to; ++from) fn(from, scratch.get());
    });
  }

  const Text& text;
  bool prompt;
  const AttentionKernels& kernels;
  KvPool pool;
  AttentionPlan plan;
  headrace::ThreadPool threads;
  AttentionLayer layer;
  std::vector<std::size_t> done;
  std::vector<std::vector<float>> out;
};

/// All sequences, each whole, in one step.
std::vector<std::vector<float>> whole(const Text& text, Isa isa, std::size_t n_threads = 1, bool prompt = false) {
  Runner runner(text, isa, n_threads, prompt);
  Chunks chunks;
  for (std::size_t s = 0; s < text.lengths.size(); ++s) chunks.emplace_back(s, text.lengths[s]);
  runner.step(chunks);
  return runner.out;
}

/// Random chunks of random sequences, decoding and prompts mixed, until all is done.
std::vector<std::vector<float>> chunked(const Text& text, Isa isa, std::size_t n_threads, unsigned seed,
                                        bool prompt = false) {
  std::mt19937 random(seed);
  Runner runner(text, isa, n_threads, prompt);
  while (true) {
    Chunks chunks;
    for (std::size_t s = 0; s < text.lengths.size(); ++s) {
      const std::size_t left = text.lengths[s] - runner.done[s];
      if (left == 0 || random() % 4 == 0) continue;
      const std::size_t wanted = random() % 3 == 0 ? 1 : 1 + random() % 150;
      chunks.emplace_back(s, std::min(left, wanted));
    }
    std::shuffle(chunks.begin(), chunks.end(), random);
    if (!chunks.empty()) runner.step(chunks);
    if (runner.done == text.lengths) return runner.out;
  }
}

std::vector<double> reference_head(const Text& text, const float* head, const float* norm, std::size_t position) {
  const Model& m = text.model;
  std::vector<double> x(head, head + m.head_dim);
  if (m.norm) {
    double squares = 0.0;
    for (const double v : x) squares += v * v;
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(m.head_dim) + 1e-6);
    for (std::size_t d = 0; d < x.size(); ++d) x[d] *= scale * norm[d];
  }
  const std::vector<float> cos = text.angles(position, false);
  const std::vector<float> sin = text.angles(position, true);
  for (std::size_t i = 0; i < m.pairs; ++i) {
    double& a = x[m.interleaved ? 2 * i : i];
    double& b = x[m.interleaved ? 2 * i + 1 : i + m.pairs];
    const double first = a * cos[i] - b * sin[i];
    b = b * cos[i] + a * sin[i];
    a = first;
  }
  return x;
}

void round_as_stored(std::vector<double>& x, KvDtype dtype) {
  double top = 0.0;
  for (const double v : x) top = std::max(top, std::fabs(v));
  for (double& v : x) {
    if (dtype == KvDtype::int8) {
      v = top == 0.0 ? 0.0 : std::nearbyint(v * 127.0 / top) * top / 127.0;
    } else {
      const float narrow = static_cast<float>(v);
      float back = 0.0F;
      std::uint16_t half = 0;
      headrace::llm::ops(Isa::scalar).to_f16(&narrow, 1, &half);
      headrace::llm::ops(Isa::scalar).from_f16(&half, 1, &back);
      v = back;
    }
  }
}

/// Causal attention by the textbook, in double.
std::vector<double> reference(const Text& text, std::size_t s) {
  const Model& m = text.model;
  const std::size_t n = text.lengths[s];
  const auto head = [&](std::size_t t, std::size_t h) { return text.qkv[s].data() + t * m.width() + h * m.head_dim; };
  std::vector<double> out;
  std::vector<std::vector<double>> keys, values;
  for (std::size_t t = 0; t < n; ++t) {
    for (std::size_t h = 0; h < m.n_kv_heads; ++h) {
      keys.push_back(reference_head(text, head(t, m.n_heads + h), text.k_norm.data(), t));
      const float* value = head(t, m.n_heads + m.n_kv_heads + h);
      values.emplace_back(value, value + m.head_dim);
      round_as_stored(keys.back(), m.dtype);
      round_as_stored(values.back(), m.dtype);
    }
    for (std::size_t h = 0; h < m.n_heads; ++h) {
      const std::vector<double> query = reference_head(text, head(t, h), text.q_norm.data(), t);
      const std::size_t kv = h * m.n_kv_heads / m.n_heads;
      std::vector<double> sum(m.head_dim, 0.0);
      double total = 0.0;
      for (std::size_t j = 0; j <= t; ++j) {
        if (m.window != 0 && j + m.window <= t) continue;
        double score = 0.0;
        for (std::size_t d = 0; d < m.head_dim; ++d) score += query[d] * keys[j * m.n_kv_heads + kv][d];
        score *= m.scale();
        if (m.softcap > 0.0F) score = m.softcap * std::tanh(score / m.softcap);
        const double p = std::exp(score);
        total += p;
        for (std::size_t d = 0; d < m.head_dim; ++d) sum[d] += p * values[j * m.n_kv_heads + kv][d];
      }
      for (const double x : sum) out.push_back(x / total);
    }
  }
  return out;
}

std::vector<Model> models() {
  std::vector<Model> all(10);
  all[1] = {9, 3, 64, 32, 0, 0.0F, true, false, KvDtype::f16};        // SmolLM2
  all[2] = {4, 1, 256, 128, 70, 0.0F, false, true, KvDtype::f16};     // Gemma 3, its window shrunk
  all[3] = {8, 2, 128, 64, 0, 0.0F, true, false, KvDtype::f16};       // Llama 3
  all[4] = {8, 4, 256, 128, 100, 50.0F, false, false, KvDtype::f16};  // Gemma 2
  all[5] = {14, 2, 64, 32, 0, 0.0F, false, false, KvDtype::int8};     // Qwen 2
  all[6] = {5, 5, 40, 20, 300, 0.0F, true, false, KvDtype::int8};     // odd in every way
  all[7] = {11, 1, 8, 3, 0, 5.0F, false, true, KvDtype::f16};
  all[8] = {32, 1, 72, 10, 17, 0.0F, true, true, KvDtype::int8};       // tiles of two tokens, partial rotation
  all[9] = {64, 1, 16, 0, 1, 0.0F, false, false, KvDtype::f16, 3.0F};  // sees itself alone, is not rotated
  return all;
}

}  // namespace

TEST(llm_attention_is_close_to_double) {
  // Half precision's own rounding aside (the reference rounds alike), a double rounding may flip a stored code.
  for (const Model& model : models()) {
    const double step = model.dtype == KvDtype::f16 ? 1.0 / 1024 : 1.0 / 127;
    const Text text(model, {70, 270}, 5);
    for (const Isa isa : {headrace::supported_isas().back()}) {
      const auto out = whole(text, isa);
      for (std::size_t s = 0; s < 2; ++s) {
        const std::vector<double> want = reference(text, s);
        double worst = 0.0;
        double squares = 0.0;
        for (std::size_t i = 0; i < want.size(); ++i) {
          worst = std::max(worst, std::fabs(out[s][i] - want[i]));
          squares += (out[s][i] - want[i]) * (out[s][i] - want[i]);
        }
        CHECK(worst < 2.0 * step * model.size);
        CHECK(std::sqrt(squares / static_cast<double>(want.size())) <
              (model.dtype == KvDtype::f16 ? 2e-5 : 2e-4) * model.size);
      }
    }
  }
}

TEST(llm_attention_every_isa_gives_the_bits_of_the_scalar_one) {
  for (const Model& model : models()) {
    const Text text(model, {1, 37, 265}, 6);
    const auto want = whole(text, Isa::scalar);
    for (const Isa isa : headrace::supported_isas()) {
      const auto out = whole(text, isa, 2);
      for (std::size_t s = 0; s < want.size(); ++s) CHECK(bits::same(out[s], want[s]));
    }
  }
}

TEST(llm_attention_chunks_threads_and_company_change_no_bit) {
  const Isa best = headrace::supported_isas().back();
  unsigned seed = 0;
  for (const Model& model : models()) {
    const Text text(model, {530, 1, 270, 33}, 7);
    const auto want = whole(text, best);
    for (const std::size_t n_threads : {2, 5}) {
      const auto out = chunked(text, best, n_threads, ++seed);
      for (std::size_t s = 0; s < want.size(); ++s) CHECK(bits::same(out[s], want[s]));
    }
  }
}

TEST(llm_attention_decoding_gives_the_bits_of_a_prompt) {
  for (const Isa isa : headrace::supported_isas()) {
    const Text text(models()[1], {isa == Isa::scalar ? 40U : 530U}, 8);
    const auto want = whole(text, isa);
    Runner runner(text, isa, 2);
    while (runner.done[0] < text.lengths[0]) runner.step({{0, 1}});
    CHECK(bits::same(runner.out[0], want[0]));
  }
}

TEST(llm_attention_of_prompts_is_close_to_double_in_any_chunks) {
  // With AMX, numbers are rounded to bfloat16, which has 8 bits; elsewhere prompts are computed as all tokens are.
  const Isa best = headrace::supported_isas().back();
  unsigned seed = 20;
  for (const Model& model : models()) {
    const Text text(model, {70, 1, 270}, 14);
    const auto out = whole(text, best, 1, true);
    for (std::size_t s = 0; s < 3; ++s) {
      const std::vector<double> want = reference(text, s);
      double squares = 0.0;
      double size = 0.0;
      for (std::size_t i = 0; i < want.size(); ++i) {
        squares += (out[s][i] - want[i]) * (out[s][i] - want[i]);
        size += want[i] * want[i];
      }
      CHECK(squares <= 1e-4 * size);
    }
    for (const std::size_t n_threads : {1, 3}) {
      const auto again = chunked(text, best, n_threads, ++seed, true);
      for (std::size_t s = 0; s < 3; ++s) CHECK(bits::same(again[s], out[s]));
    }
  }
}

TEST(llm_attention_splits_a_lone_long_context_and_no_short_one) {
  const Text text(models()[1], {3000, 100}, 9);
  Runner runner(text, headrace::supported_isas().back(), 2);
  runner.step({{0, 2999}, {1, 99}});
  CHECK(runner.plan.n_writes() != 0);
  runner.step({{0, 1}});
  CHECK(runner.plan.n_units() == 3 * 12 && runner.plan.n_merges() == 9 && runner.plan.n_writes() == 0);
  runner.step({{1, 1}});
  CHECK(runner.plan.n_units() == 3 && runner.plan.n_merges() == 0 && runner.plan.n_writes() == 0);
}

TEST(llm_attention_nasty_values_stay_with_their_sequence) {
  for (const KvDtype dtype : {KvDtype::f16, KvDtype::int8}) {
    Model model = models()[1];
    model.dtype = dtype;
    model.window = 40;
    Text text(model, {100, 100, 100}, 10);
    std::mt19937 random(11);
    const auto clean = whole(text, Isa::scalar);
    text.qkv[0] = bits::nasty_row(random, text.qkv[0].size(), 300);
    for (std::size_t i = 20 * model.width(); i < 21 * model.width(); ++i) text.qkv[2][i] = std::nanf("");
    const auto want = whole(text, Isa::scalar);
    CHECK(bits::same(want[1], clean[1]));
    const std::size_t width = model.n_heads * model.head_dim;
    for (std::size_t t = 0; t < 100; ++t) {  // a NaN reaches those that see it, and nobody else
      for (std::size_t i = t * width; i < (t + 1) * width; ++i) {
        CHECK(t >= 20 && t < 60 ? std::isnan(want[2][i]) : bits::same(want[2][i], clean[2][i]));
      }
    }
    for (const Isa isa : headrace::supported_isas()) {
      const auto out = chunked(text, isa, 2, 12);
      for (std::size_t s = 0; s < 3; ++s) CHECK(bits::same(out[s], want[s]));
    }
  }
}

TEST(llm_attention_huge_values_give_finite_numbers_or_nan_but_the_same_bits) {
  for (const float size : {1e-30F, 300.0F, 1e6F, 1e30F}) {
    Model model = models()[3];
    model.size = size;
    const Text text(model, {50}, 13);
    const auto want = whole(text, Isa::scalar);
    if (size < 1e4F) {
      for (const float x : want[0]) CHECK(std::isfinite(x));
    }
    for (const Isa isa : headrace::supported_isas()) CHECK(bits::same(whole(text, isa)[0], want[0]));
  }
}

TEST(llm_attention_refuses_what_it_cannot_run) {
  const KvPool pool({8, 1, 2, 16, KvDtype::f16});
  CHECK_THROWS(Error, AttentionPlan(pool, 3, 0, 1));
  CHECK_THROWS(Error, AttentionPlan(pool, 0, 0, 1));
  CHECK_THROWS(Error, AttentionPlan(pool, 2 * 129, 0, 1));
  AttentionPlan plan(pool, 4, 20, 1);
  const std::int32_t blocks[] = {-1, 0, 7, 8};
  const auto build = [&](std::size_t n_tokens, std::size_t position, std::size_t n_blocks) {
    const StepSequence sequence{0, n_tokens, position, std::span(blocks).first(n_blocks)};
    plan.build({&sequence, 1});
    return plan.n_units();
  };
  CHECK(build(1, 40, 3) == 2);           // the page of position 0 is behind the window
  CHECK_THROWS(Error, build(0, 40, 3));  // no tokens
  CHECK_THROWS(Error, build(1, 30, 3));  // page -1
  CHECK_THROWS(Error, build(1, 48, 4));  // page 8 of 8
  CHECK_THROWS(Error, build(9, 40, 3));  // the table is too short
  plan.build({});
  CHECK(plan.n_units() == 0 && plan.n_writes() == 0 && plan.n_merges() == 0);
}

TEST(llm_kv_pool_copies_pages_and_refuses_what_cannot_be) {
  KvPool pool({4, 2, 3, 40, KvDtype::int8});
  CHECK(pool.padded_dim() == 48);
  CHECK(pool.head_bytes() % 64 == 0 && pool.page_bytes() == 6 * pool.head_bytes());
  CHECK(pool.scales_offset() + 2 * 16 * sizeof(float) <= pool.head_bytes());
  for (std::size_t page = 0; page < 4; ++page) {
    std::memset(pool.keys(page, 0, 0), static_cast<int>(page + 1), pool.page_bytes());
  }
  pool.copy_page(2, 1);
  pool.copy_page(3, 3);
  for (std::size_t i = 0; i < pool.page_bytes(); ++i) {
    CHECK(pool.keys(0, 0, 0)[i] == std::byte{1} && pool.keys(1, 0, 0)[i] == std::byte{3});
    CHECK(pool.keys(2, 0, 0)[i] == std::byte{3} && pool.keys(3, 0, 0)[i] == std::byte{4});
  }
  CHECK_THROWS(Error, (pool.copy_page(4, 0), 0));
  CHECK_THROWS(Error, (pool.copy_page(0, 4), 0));
  for (const std::size_t bad : {std::size_t{0}, std::size_t{1} << 40U}) {
    CHECK_THROWS(Error, KvPool({bad, 2, 3, 40, KvDtype::f16}));
    CHECK_THROWS(Error, KvPool({4, bad, 3, 40, KvDtype::f16}));
    CHECK_THROWS(Error, KvPool({4, 2, bad, 40, KvDtype::f16}));
    CHECK_THROWS(Error, KvPool({4, 2, 3, bad, KvDtype::f16}));
  }
  CHECK_THROWS(Error, KvPool({4, 2, 3, 44, KvDtype::f16}));
  CHECK_THROWS(Error, KvPool({1000000000, 1000000000, 1000, 128, KvDtype::f16}));
}
