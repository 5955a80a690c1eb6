#include "headrace/llm/sample.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "headrace/error.hpp"
#include "headrace/simd/choose.hpp"
#include "sample_passes.hpp"

namespace headrace::llm {
namespace {

constexpr std::size_t kBlock = kSampleBlock;
constexpr float kLargest = std::numeric_limits<float>::max();

std::size_t blocks_of(std::size_t n) {
  return (n + kBlock - 1) / kBlock;
}

// The best come first: smaller key, then smaller id. No two candidates are equal.
bool before(const Candidate& a, const Candidate& b) {
  return a.key < b.key || (a.key == b.key && a.token < b.token);
}

// Candidates by id whose value is at least `threshold` and above -inf; keys are the negated values.
void collect(const float* x, std::size_t n, const std::vector<float>& maxima, float threshold,
             std::vector<Candidate>& out) {
  out.clear();
  const float floor = std::max(threshold, -kLargest);
  for (std::size_t block = 0; block < maxima.size(); ++block) {
    if (maxima[block] < floor) continue;
    const std::size_t end = std::min(n, (block + 1) * kBlock);
    for (std::size_t i = block * kBlock; i < end; ++i) {
      if (x[i] >= floor) out.push_back({-x[i], static_cast<std::int32_t>(i), 0.0f});
    }
  }
}

// Keep the candidates up to and including `last`, in the order they have.
void keep(std::vector<Candidate>& candidates, Candidate last) {
  std::erase_if(candidates, [&](const Candidate& one) { return before(last, one); });
}

// Keep the `count` best.
void keep_best(std::vector<Candidate>& candidates, std::size_t count, std::vector<Candidate>& order) {
  if (candidates.size() <= count) return;
  order = candidates;
  const auto last = order.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(order.begin(), last, order.end(), before);
  keep(candidates, *last);
}

// Keep the fewest best whose weights reach `target`, at least one. Halves what is left to look at with each step.
void keep_mass(std::vector<Candidate>& candidates, double target, std::vector<Candidate>& order) {
  order = candidates;
  auto from = order.begin();
  auto to = order.end();
  while (to - from > 1) {
    const auto middle = from + (to - from) / 2;
    std::nth_element(from, middle, to, before);
    double sum = 0.0;
    for (auto one = from; one != middle; ++one) sum += static_cast<double>(one->weight);
    if (sum >= target) {
      to = middle;
    } else {
      target -= sum;
      from = middle;
    }
  }
  keep(candidates, *from);
}

// Collect the `count` largest values, by id.
void collect_best(const float* x, std::size_t n, const std::vector<float>& maxima, std::size_t count,
                  SampleScratch& scratch) {
  float threshold = -kInfinity;
  if (count < maxima.size()) {  // the count-th largest maximum has at least `count` values not below it
    scratch.selected = maxima;
    const auto place = scratch.selected.begin() + static_cast<std::ptrdiff_t>(count - 1);
    std::nth_element(scratch.selected.begin(), place, scratch.selected.end(), std::greater<>());
    threshold = *place;
  }
  collect(x, n, maxima, threshold, scratch.candidates);
  keep_best(scratch.candidates, count, scratch.order);
}

double sum_of(const std::vector<Candidate>& candidates) {
  double sum = 0.0;
  for (const Candidate& one : candidates) sum += static_cast<double>(one.weight);
  return sum;
}

// All tokens of weight exp((x - max) * scale) >= `lightest`, by id, and perhaps a few more; 0 is all tokens.
void collect_heavy(const float* row, std::size_t n, const std::vector<float>& maxima, float max, float scale,
                   double lightest, std::vector<Candidate>& out) {
  const double depth = lightest > 0.0 ? (0.01 - std::log(lightest)) / static_cast<double>(scale) : kInfinity;
  collect(row, n, maxima, static_cast<float>(static_cast<double>(max) - depth), out);
  for (Candidate& one : out) one.weight = exp_of((-one.key - max) * scale);
}

// Order candidates by how far their surprise, -log of the probability, is from the expected one, which is `entropy`.
void key_by_surprise(std::vector<Candidate>& candidates, float max, float scale, double log_total, double entropy) {
  for (Candidate& one : candidates) {
    const double surprise = log_total - static_cast<double>((-one.key - max) * scale);
    one.key = one.weight > 0.0f ? static_cast<float>(std::abs(surprise - entropy)) : kInfinity;
  }
}

// Keep the tokens whose surprise is closest to the expected one. Source: Meister et al. 2023, arXiv:2202.00666.
void keep_typical(std::vector<Candidate>& candidates, double mass, float max, float scale,
                  std::vector<Candidate>& order) {
  const double total = sum_of(candidates);
  double exponent = 0.0;
  for (const Candidate& one : candidates) {
    if (one.weight > 0.0f) exponent += static_cast<double>(one.weight) * static_cast<double>((-one.key - max) * scale);
  }
  key_by_surprise(candidates, max, scale, std::log(total), std::log(total) - exponent / total);
  keep_mass(candidates, mass * total, order);
}

void report(const SamplePasses& passes, const float* row, std::size_t n, const std::vector<float>& maxima,
            int alternatives, SampleScratch& scratch, SampleResult& result) {
  const float max = *std::max_element(maxima.begin(), maxima.end());
  const double log_total = static_cast<double>(max) + std::log(passes.total_weight(row, n, max, 1.0f, nullptr));
  result.logprob = static_cast<double>(row[result.token]) - log_total;
  if (alternatives == 0) return;
  collect_best(row, n, maxima, static_cast<std::size_t>(alternatives), scratch);
  std::sort(scratch.candidates.begin(), scratch.candidates.end(), before);
  result.top.reserve(scratch.candidates.size());
  for (const Candidate& one : scratch.candidates) {
    result.top.push_back({one.token, static_cast<double>(-one.key) - log_total});
  }
}

const SamplePasses& passes(Isa isa) {
#if defined(__x86_64__)
  return for_isa<SamplePasses>(isa, &kPasses, &kSamplePassesAvx2, &kSamplePassesAvx512, nullptr);
#else
  return for_isa<SamplePasses>(isa, &kPasses, nullptr, nullptr, &kPasses);
#endif
}

}  // namespace

Philox philox(Philox counter, std::uint64_t key) {
  auto low = static_cast<std::uint32_t>(key);
  auto high = static_cast<std::uint32_t>(key >> 32);
  auto& word = counter.word;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * word[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * word[2];
    word[0] = static_cast<std::uint32_t>(b >> 32) ^ word[1] ^ low;
    word[1] = static_cast<std::uint32_t>(b);
    word[2] = static_cast<std::uint32_t>(a >> 32) ^ word[3] ^ high;
    word[3] = static_cast<std::uint32_t>(a);
    low += 0x9E3779B9;
    high += 0xBB67AE85;
  }
  return counter;
}

TokenSampler::TokenSampler(SamplingOptions options, std::size_t vocab, std::span<const std::int32_t> prompt, Isa isa)
    : options_(std::move(options)),
      passes_(&passes(isa)),
      vocab_(vocab),
      scale_(static_cast<float>(std::min(1.0 / options_.temperature, 1e30))),
      penalised_(options_.repetition_penalty != 1.0 || options_.presence_penalty != 0.0 ||
                 options_.frequency_penalty != 0.0) {
  for (const auto& [token, value] : options_.bias) check(token);
  for (const std::int32_t token : prompt) check(token);
  if (options_.repetition_penalty != 1.0) {
    for (const std::int32_t token : prompt) seen_.try_emplace(token, 0);
  }
}

void TokenSampler::check(std::int32_t token) const {
  if (token < 0 || static_cast<std::size_t>(token) >= vocab_) {
    throw Error(ErrorKind::invalid_input,
                "expected token ids below " + std::to_string(vocab_) + ", got " + std::to_string(token));
  }
}

void TokenSampler::accept(std::int32_t token) {
  check(token);
  ++position_;
  if (penalised_) ++seen_[token];
}

// Uniform in [0, 1) with 53 bits.
double TokenSampler::uniform() const {
  const Philox drawn =
      philox({{static_cast<std::uint32_t>(position_), static_cast<std::uint32_t>(position_ >> 32), options_.index, 0}},
             options_.seed);
  return static_cast<double>((std::uint64_t{drawn.word[0]} << 21) | (drawn.word[1] >> 11)) * 0x1p-53;
}

bool TokenSampler::edits(const std::uint32_t* mask) const {
  return mask != nullptr || !options_.bias.empty() || !seen_.empty();
}

// The row after bias, penalties and mask into `scratch.row`, its maxima into `scratch.edited`; what may not be chosen
// is -inf. Only the blocks that were touched are looked at again.
void TokenSampler::edit(const float* row, const std::uint32_t* mask, SampleScratch& scratch) const {
  std::vector<float>& out = scratch.row;
  out.assign(blocks_of(vocab_) * kBlock, -kInfinity);
  std::copy(row, row + vocab_, out.begin());
  scratch.edited = scratch.maxima;
  scratch.touched.assign(scratch.maxima.size(), 0);
  const auto touch = [&](std::int32_t token) -> float& {
    scratch.touched[static_cast<std::size_t>(token) / kBlock] = 1;
    return out[static_cast<std::size_t>(token)];
  };
  for (const auto& [token, value] : options_.bias) {
    float& logit = touch(token);
    logit = value <= -100.0 ? -kInfinity : static_cast<float>(static_cast<double>(logit) + std::min(value, 100.0));
  }
  for (const auto& [token, count] : seen_) {
    float& place = touch(token);
    auto logit = static_cast<double>(place);
    logit = logit > 0.0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
    if (count > 0) logit -= options_.presence_penalty + options_.frequency_penalty * count;
    place = static_cast<float>(std::min(logit, static_cast<double>(kLargest)));
  }
  for (std::size_t first = 0; mask != nullptr && first < vocab_; first += 32) {
    std::uint32_t forbidden = ~mask[first / 32];
    if (forbidden == 0) continue;
    scratch.touched[first / kBlock] = 1;
    const std::size_t count = std::min<std::size_t>(32, vocab_ - first);
    float* part = out.data() + first;
    if (forbidden == 0xFFFFFFFF) {
      std::fill(part, part + count, -kInfinity);
      continue;
    }
    if (count < 32) forbidden &= (1u << count) - 1;
    for (; forbidden != 0; forbidden &= forbidden - 1) part[std::countr_zero(forbidden)] = -kInfinity;
  }
  std::vector<std::pair<std::size_t, float>> forced;
  for (const auto& [token, value] : options_.bias) {
    const auto place = static_cast<std::size_t>(token);
    if (value >= 100.0 && out[place] > -kInfinity) forced.emplace_back(place, out[place]);
  }
  if (!forced.empty()) {
    std::fill(out.begin(), out.end(), -kInfinity);
    scratch.touched.assign(scratch.touched.size(), 1);
    for (const auto& [place, logit] : forced) out[place] = logit;
  }
  for (std::size_t block = 0; block < scratch.touched.size(); ++block) {
    if (scratch.touched[block] != 0) scratch.edited[block] = block_max(out.data() + block * kBlock);
  }
}

// `gather` where typical is the only filter. Tokens out of sight are further from the expected surprise than `reach`:
// once those in sight that are closer have the mass, no others matter.
void TokenSampler::gather_typical(const float* row, const std::vector<float>& maxima, float max,
                                  SampleScratch& scratch) const {
  std::vector<Candidate>& candidates = scratch.candidates;
  const double total = passes_->total_weight(row, vocab_, max, scale_, nullptr);
  const double log_total = std::log(total);
  const double entropy = log_total - passes_->total_exponent(row, vocab_, max, scale_) / total;
  const double target = options_.typical_p * total;
  for (double lightest = 1e-3;; lightest *= 0.1) {
    if (lightest < 1e-9) lightest = 0.0;
    collect_heavy(row, vocab_, maxima, max, scale_, lightest, candidates);
    key_by_surprise(candidates, max, scale_, log_total, entropy);
    const double reach = log_total - std::log(lightest) - entropy - 1e-3;
    double within = 0.0;
    for (const Candidate& one : candidates) {
      if (static_cast<double>(one.key) < reach) within += static_cast<double>(one.weight);
    }
    if (within >= target || lightest == 0.0) break;
  }
  keep_mass(candidates, target, scratch.order);
}

// The candidates that top-k, top-p, min-p and typical leave, by id, with their weights.
void TokenSampler::gather(const float* row, const std::vector<float>& maxima, float max, SampleScratch& scratch) const {
  std::vector<Candidate>& candidates = scratch.candidates;
  const bool by_rank = options_.top_k > 0 && options_.top_k < vocab_;
  const bool by_mass = options_.top_p < 1.0;
  if (!by_rank && !by_mass && options_.min_p == 0.0) return gather_typical(row, maxima, max, scratch);
  if (by_rank) {
    collect_best(row, vocab_, maxima, options_.top_k, scratch);
    for (Candidate& one : candidates) one.weight = exp_of((-one.key - max) * scale_);
    if (by_mass) keep_mass(candidates, options_.top_p * sum_of(candidates), scratch.order);
  } else if (by_mass) {
    // All those lighter than (1 - p) total / vocab weigh less together than what is dropped. Mostly much fewer tokens
    // have the mass: start with those of at least a thousandth.
    const double total = passes_->total_weight(row, vocab_, max, scale_, nullptr);
    const double enough = (1.0 - options_.top_p) * total / static_cast<double>(vocab_);
    double lightest = 1e-2;
    do {
      lightest = std::max(0.1 * lightest, enough);
      collect_heavy(row, vocab_, maxima, max, scale_, lightest, candidates);
    } while (lightest > enough && sum_of(candidates) < options_.top_p * total);
    keep_mass(candidates, options_.top_p * total, scratch.order);
  } else {
    collect_heavy(row, vocab_, maxima, max, scale_, options_.min_p, candidates);
  }
  if (options_.min_p > 0.0) {
    std::erase_if(candidates, [&](const Candidate& one) { return static_cast<double>(one.weight) < options_.min_p; });
  }
  if (options_.typical_p < 1.0) keep_typical(candidates, options_.typical_p, max, scale_, scratch.order);
}

std::int32_t TokenSampler::choose(const float* row, const std::vector<float>& maxima, float max,
                                  SampleScratch& scratch) const {
  if (options_.temperature == 0.0) {
    const auto block = std::find(maxima.begin(), maxima.end(), max) - maxima.begin();
    return static_cast<std::int32_t>(std::find(row + static_cast<std::size_t>(block) * kBlock, row + vocab_, max) -
                                     row);
  }
  const bool filtered = (options_.top_k > 0 && options_.top_k < vocab_) || options_.top_p < 1.0 ||
                        options_.min_p > 0.0 || options_.typical_p < 1.0;
  if (filtered) {
    gather(row, maxima, max, scratch);
    const double target = uniform() * sum_of(scratch.candidates);
    double sum = 0.0;
    std::int32_t chosen = -1;
    for (const Candidate& one : scratch.candidates) {
      if (one.weight == 0.0f) continue;
      chosen = one.token;  // the last one stands where rounding leaves the sum short of the target
      sum += static_cast<double>(one.weight);
      if (sum > target) break;
    }
    return chosen;
  }
  scratch.sums.resize(maxima.size());
  const double target = uniform() * passes_->total_weight(row, vocab_, max, scale_, scratch.sums.data());
  // The block in which the running sum passes the target, then the token in it; the last one with any weight stands
  // where rounding leaves a sum short.
  double sum = 0.0;
  std::size_t chosen = 0;
  for (std::size_t block = 0; block < maxima.size(); ++block) {
    if (scratch.sums[block] == 0.0) continue;
    chosen = block;
    if (sum + scratch.sums[block] > target) break;
    sum += scratch.sums[block];
  }
  std::size_t token = 0;
  for (std::size_t i = chosen * kBlock; i < std::min(vocab_, (chosen + 1) * kBlock); ++i) {
    const float weight = exp_of((row[i] - max) * scale_);
    if (weight == 0.0f) continue;
    token = i;
    sum += static_cast<double>(weight);
    if (sum > target) break;
  }
  return static_cast<std::int32_t>(token);
}

SampleResult TokenSampler::sample(const float* row, const std::uint32_t* mask, SampleScratch& scratch) const {
  SampleResult result;
  scratch.maxima.resize(blocks_of(vocab_));
  if (!passes_->scan(row, vocab_, scratch.maxima.data())) {
    result.status = SampleStatus::not_finite;
    return result;
  }
  const float* filtered = row;
  const std::vector<float>* maxima = &scratch.maxima;
  if (edits(mask)) {
    edit(row, mask, scratch);
    filtered = scratch.row.data();
    maxima = &scratch.edited;
  }
  const float max = *std::max_element(maxima->begin(), maxima->end());
  if (max == -kInfinity) {
    result.status = SampleStatus::nothing_left;
    return result;
  }
  result.token = choose(filtered, *maxima, max, scratch);
  if (options_.logprobs >= 0) report(*passes_, row, vocab_, scratch.maxima, options_.logprobs, scratch, result);
  return result;
}

}  // namespace headrace::llm
