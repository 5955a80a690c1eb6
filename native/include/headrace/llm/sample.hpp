// Choosing a token: a row of logits in, one id out, by way of
//   logit bias, penalties, mask, temperature, top-k, top-p, min-p, typical, draw
// in this order, each filter seeing the probabilities renormalised over what the one before it left. Log-probabilities
// are of the raw row. Among equals the lower id comes first everywhere, and the draw walks the survivors by id, so that
// the result is a function of the row, the options, what was accepted so far, the seed and the position.
// Nothing is sorted and the row is read once or twice: maxima of 64 neighbours tell which parts can matter at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "headrace/cpu.hpp"

namespace headrace::llm {

struct SamplingOptions {
  double temperature = 0.0;  // 0: the most likely token that is left, whatever the filters after it
  std::size_t top_k = 0;     // 0: all
  double top_p = 1.0;
  double min_p = 0.0;
  double typical_p = 1.0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  // <= -100 forbids; where one is >= 100, only such tokens are left.
  std::vector<std::pair<std::int32_t, double>> bias = {};
  std::uint64_t seed = 0;
  std::uint32_t index = 0;  // which answer to the request
  int logprobs = -1;        // how many alternatives to report; -1: not even the chosen one's
};

enum class SampleStatus : std::uint8_t {
  ok,
  not_finite,    // the row holds a NaN or +inf
  nothing_left,  // every token is forbidden
};

struct TokenLogprob {
  std::int32_t token;
  double logprob;
};

struct SampleResult {
  SampleStatus status = SampleStatus::ok;
  std::int32_t token = -1;
  double logprob = 0.0;
  std::vector<TokenLogprob> top;
};

/// A token that may still be chosen. `key` orders candidates (smaller is better), `weight` is exp((logit - max) / T).
struct Candidate {
  float key;
  std::int32_t token;
  float weight;
};

/// Memory that calls on one thread share.
struct SampleScratch {
  std::vector<float> row;
  std::vector<float> maxima;          // of the raw row
  std::vector<float> edited;          // of `row`
  std::vector<float> selected;        // a copy to select in
  std::vector<std::uint8_t> touched;  // blocks of `row`
  std::vector<double> sums;           // of weights, by block
  std::vector<Candidate> candidates;
  std::vector<Candidate> order;
};

/// Four random words for a counter and a key: Philox4x32-10. Source: Salmon et al. 2011, "Parallel random numbers: as
/// easy as 1, 2, 3".
struct Philox {
  std::uint32_t word[4];
};
[[nodiscard]] Philox philox(Philox counter, std::uint64_t key);

inline constexpr std::size_t kSampleBlock = 64;  // neighbours that share a maximum

/// Passes over a row of `n` values, in blocks. Every instruction set gives the same bits.
struct SamplePasses {
  /// The maximum of each block. Returns false when there is a NaN or +inf.
  bool (*scan)(const float* x, std::size_t n, float* maxima);
  /// The sum of exp((x - max) * scale), block by block into `sums` (may be null) and in all.
  double (*total_weight)(const float* x, std::size_t n, float max, float scale, double* sums);
  /// The sum of y * exp(y), y = (x - max) * scale.
  double (*total_exponent)(const float* x, std::size_t n, float max, float scale);
};

class TokenSampler {
 public:
  /// `prompt` counts for the repetition penalty. Throws invalid_input for a token outside the vocabulary.
  TokenSampler(SamplingOptions options, std::size_t vocab, std::span<const std::int32_t> prompt, Isa isa = best_isa());

  /// Choose from float32[vocab]; `mask` (bit t % 32 of word t / 32: token t may be chosen) may be null. Accepts
  /// nothing.
  [[nodiscard]] SampleResult sample(const float* row, const std::uint32_t* mask, SampleScratch& scratch) const;

  /// Count `token` as the next of the answer. Throws invalid_input for a token outside the vocabulary.
  void accept(std::int32_t token);

  [[nodiscard]] std::uint64_t position() const noexcept { return position_; }
  [[nodiscard]] std::size_t vocab() const noexcept { return vocab_; }

 private:
  [[nodiscard]] bool edits(const std::uint32_t* mask) const;
  void edit(const float* row, const std::uint32_t* mask, SampleScratch& scratch) const;
  [[nodiscard]] std::int32_t choose(const float* row, const std::vector<float>& maxima, float max,
                                    SampleScratch& scratch) const;
  void gather_typical(const float* row, const std::vector<float>& maxima, float max, SampleScratch& scratch) const;
  void gather(const float* row, const std::vector<float>& maxima, float max, SampleScratch& scratch) const;
  [[nodiscard]] double uniform() const;
  void check(std::int32_t token) const;

  SamplingOptions options_;
  const SamplePasses* passes_;
  std::size_t vocab_;
  float scale_;  // 1 / temperature
  bool penalised_;
  std::unordered_map<std::int32_t, std::uint32_t> seen_;  // token -> times in the answer; 0: in the prompt only
  std::uint64_t position_ = 0;
};

}  // namespace headrace::llm
