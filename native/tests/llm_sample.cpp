#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "check.hpp"
#include "headrace/error.hpp"
#include "headrace/llm/sample.hpp"

using namespace headrace::llm;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_row(std::size_t vocab, unsigned seed, float spread) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> row(vocab);
  for (float& value : row) value = normal(random);
  return row;
}

SampleResult draw(const SamplingOptions& options, const std::vector<float>& row, const std::uint32_t* mask = nullptr) {
  SampleScratch scratch;
  return TokenSampler(options, row.size(), {}).sample(row.data(), mask, scratch);
}

// Token ids, most likely first.
std::vector<std::int32_t> sorted(const std::vector<float>& row) {
  std::vector<std::int32_t> ids(row.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
    return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
  });
  return ids;
}

double weight(const std::vector<float>& row, std::int32_t token, double temperature) {
  const auto max = static_cast<double>(*std::max_element(row.begin(), row.end()));
  return std::exp((static_cast<double>(row[static_cast<std::size_t>(token)]) - max) / temperature);
}

// Every token that a few hundred draws find.
std::set<std::int32_t> drawn(SamplingOptions options, const std::vector<float>& row, int draws = 400) {
  std::set<std::int32_t> found;
  for (int i = 0; i < draws; ++i) {
    options.seed = static_cast<std::uint64_t>(i);
    const SampleResult result = draw(options, row);
    CHECK(result.status == SampleStatus::ok);
    found.insert(result.token);
  }
  return found;
}

}  // namespace

TEST(philox_gives_the_published_words) {
  const auto same = [](Philox got, Philox wanted) { return std::equal(got.word, got.word + 4, wanted.word); };
  CHECK(same(philox({{0, 0, 0, 0}}, 0), {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}));
  CHECK(same(philox({{~0u, ~0u, ~0u, ~0u}}, ~std::uint64_t{0}), {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}));
  CHECK(same(philox({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822),
             {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));
}

TEST(sampling_keeps_the_k_most_likely_of_any_vocabulary) {
  for (const std::size_t vocab : {1ul, 2ul, 15ul, 63ul, 64ul, 65ul, 127ul, 128ul, 1000ul, 49152ul}) {
    const std::vector<float> row = random_row(vocab, static_cast<unsigned>(vocab), 1.0f);
    const std::vector<std::int32_t> order = sorted(row);
    for (const std::size_t k : {1ul, 3ul, 40ul}) {
      const std::size_t kept = std::min(k, vocab);
      const std::set<std::int32_t> wanted(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept));
      const std::set<std::int32_t> found = drawn({.temperature = 100.0, .top_k = k}, row);
      CHECK(std::includes(wanted.begin(), wanted.end(), found.begin(), found.end()));
      CHECK(k > 3 || found == wanted);  // nearly uniform: 400 draws find 3 tokens
    }
  }
}

TEST(sampling_keeps_the_probability_mass_of_flat_and_sharp_rows) {
  for (const float spread : {0.0f, 0.5f, 3.0f, 30.0f}) {
    const std::vector<float> row = random_row(3000, 7, spread);
    const std::vector<std::int32_t> order = sorted(row);
    double total = 0.0;
    for (const std::int32_t token : order) total += weight(row, token, 0.8);
    for (const double p : {0.001, 0.3, 0.9, 0.999}) {
      // Somewhat more than p, so that a border case of float32 does not matter.
      std::set<std::int32_t> wanted;
      double sum = 0.0;
      for (const std::int32_t token : order) {
        if (sum > (p + 1e-5) * total) break;
        wanted.insert(token);
        sum += weight(row, token, 0.8);
      }
      const std::set<std::int32_t> found = drawn({.temperature = 0.8, .top_p = p}, row, 200);
      CHECK(std::includes(wanted.begin(), wanted.end(), found.begin(), found.end()));
      CHECK(wanted.size() > 2 || found.size() == wanted.size() || p > 0.99);
    }
  }
}

TEST(sampling_draws_as_often_as_the_weights_say) {
  std::vector<float> row(49152, -40.0f);
  const std::vector<std::size_t> places = {0, 63, 64, 20000, 49151};
  for (std::size_t i = 0; i < places.size(); ++i) row[places[i]] = std::log(static_cast<float>(i + 1));
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < 3000; ++i) {
    ++counts[draw({.temperature = 1.0, .seed = static_cast<std::uint64_t>(i)}, row).token];
  }
  CHECK(counts.size() == places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    const double expected = 3000.0 * static_cast<double>(i + 1) / 15.0;
    CHECK(std::abs(counts[static_cast<std::int32_t>(places[i])] - expected) < 5.0 * std::sqrt(expected));
  }
}

TEST(sampling_log_probabilities_are_exact_enough_for_262144_tokens) {
  const std::vector<float> row = random_row(262144, 3, 4.0f);
  double total = 0.0;
  for (const float value : row) total += std::exp(static_cast<double>(value));
  const SampleResult result = draw({.logprobs = 20}, row);
  const std::vector<std::int32_t> order = sorted(row);
  CHECK(result.token == order[0]);
  CHECK(result.top.size() == 20);
  for (std::size_t i = 0; i < result.top.size(); ++i) {
    CHECK(result.top[i].token == order[i]);
    const double wanted = static_cast<double>(row[static_cast<std::size_t>(order[i])]) - std::log(total);
    CHECK(std::abs(result.top[i].logprob - wanted) < 1e-6);
  }
  CHECK(result.logprob == result.top[0].logprob);
}

TEST(sampling_masks_every_bit) {
  for (const std::size_t vocab : {31ul, 32ul, 33ul, 64ul, 130ul}) {
    const std::vector<float> row = random_row(vocab, 1, 1.0f);
    for (std::size_t only = 0; only < vocab; ++only) {
      std::vector<std::uint32_t> mask((vocab + 31) / 32, 0);
      mask[only / 32] = 1u << (only % 32);
      CHECK(draw({.temperature = 1.0, .seed = only}, row, mask.data()).token == static_cast<std::int32_t>(only));
      for (std::uint32_t& word : mask) word = ~word;
      CHECK(draw({.temperature = 5.0, .seed = only}, row, mask.data()).token != static_cast<std::int32_t>(only));
    }
    // Bits beyond the vocabulary stand for nothing.
    std::vector<std::uint32_t> beyond((vocab + 31) / 32, 0);
    if (vocab % 32 != 0) beyond.back() = ~0u << (vocab % 32);
    CHECK(draw({.temperature = 1.0}, row, beyond.data()).status == SampleStatus::nothing_left);
  }
}

TEST(sampling_says_what_is_wrong_with_a_row) {
  std::vector<float> row(200, 0.0f);
  for (const float bad : {std::nanf(""), kInfinity}) {
    for (const std::size_t place : {0ul, 100ul, 191ul, 192ul, 199ul}) {
      row[place] = bad;
      const SampleResult result = draw({.temperature = 1.0, .logprobs = 3}, row);
      CHECK(result.status == SampleStatus::not_finite && result.token == -1 && result.top.empty());
      row[place] = 0.0f;
    }
  }
  std::fill(row.begin(), row.end(), -kInfinity);
  CHECK(draw({.temperature = 1.0}, row).status == SampleStatus::nothing_left);
  row[199] = std::numeric_limits<float>::lowest();
  CHECK(draw({.temperature = 1e-300, .top_p = 0.5, .typical_p = 0.5}, row).token == 199);
}

TEST(sampling_goes_on_from_what_was_accepted) {
  const std::vector<float> row(5000, 0.0f);
  SampleScratch scratch;
  TokenSampler sampler({.temperature = 1.0, .presence_penalty = 50.0, .seed = 11}, row.size(), {});
  std::set<std::int32_t> tokens;
  for (int i = 0; i < 100; ++i) {
    const std::int32_t token = sampler.sample(row.data(), nullptr, scratch).token;
    CHECK(token == sampler.sample(row.data(), nullptr, scratch).token);
    CHECK(tokens.insert(token).second);  // the penalty lets none come twice
    sampler.accept(token);
  }
  CHECK(sampler.position() == 100);
  CHECK_THROWS(headrace::Error, sampler.accept(5000));
  CHECK_THROWS(headrace::Error, sampler.accept(-1));
  CHECK_THROWS(headrace::Error, TokenSampler({.bias = {{5000, 1.0}}}, row.size(), {}));
}

TEST(sampling_gives_the_same_bits_on_every_instruction_set) {
  for (const std::size_t vocab : {5ul, 64ul, 1001ul, 49152ul}) {
    for (const float spread : {0.1f, 3.0f, 60.0f}) {
      const std::vector<float> row = random_row(vocab, 9, spread);
      for (const SamplingOptions& options : {SamplingOptions{.temperature = 1.0, .seed = 5, .logprobs = 5},
                                             SamplingOptions{.temperature = 0.7, .top_p = 0.9, .seed = 6},
                                             SamplingOptions{.temperature = 1.3, .typical_p = 0.8, .seed = 7}}) {
        SampleScratch scratch;
        const SampleResult wanted =
            TokenSampler(options, vocab, {}, headrace::Isa::scalar).sample(row.data(), nullptr, scratch);
        for (const headrace::Isa isa : headrace::supported_isas()) {
          const SampleResult got = TokenSampler(options, vocab, {}, isa).sample(row.data(), nullptr, scratch);
          CHECK(got.token == wanted.token && got.logprob == wanted.logprob && got.top.size() == wanted.top.size());
          for (std::size_t i = 0; i < got.top.size(); ++i) CHECK(got.top[i].logprob == wanted.top[i].logprob);
        }
      }
    }
  }
}
