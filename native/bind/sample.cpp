#include "headrace/llm/sample.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bind.hpp"
#include "headrace/error.hpp"

namespace headrace::bind {
namespace {

using llm::SampleResult;
using llm::SampleScratch;
using llm::SampleStatus;
using llm::TokenSampler;

using Prompt = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void make(TokenSampler* self, std::size_t vocab, const Prompt& prompt, double temperature, std::size_t top_k,
          double top_p, double min_p, double typical_p, double repetition_penalty, double presence_penalty,
          double frequency_penalty, const std::vector<std::pair<std::int32_t, double>>& bias, std::uint64_t seed,
          std::uint32_t index, int logprobs) {
  new (self) TokenSampler({.temperature = temperature,
                           .top_k = top_k,
                           .top_p = top_p,
                           .min_p = min_p,
                           .typical_p = typical_p,
                           .repetition_penalty = repetition_penalty,
                           .presence_penalty = presence_penalty,
                           .frequency_penalty = frequency_penalty,
                           .bias = bias,
                           .seed = seed,
                           .index = index,
                           .logprobs = logprobs},
                          vocab, {prompt.data(), prompt.size()});
}

struct Job {
  const TokenSampler* sampler;
  const float* row;
  const std::uint32_t* mask;
};

Job job(const TokenSampler* sampler, const Logits& logits, std::size_t row, const std::optional<Mask>& mask) {
  const std::size_t words = (sampler->vocab() + 31) / 32;
  if (logits.shape(1) != sampler->vocab() || row >= logits.shape(0)) {
    throw Error(ErrorKind::invalid_input,
                "expected a row of " + std::to_string(sampler->vocab()) + " logits, got row " + std::to_string(row) +
                    " of " + std::to_string(logits.shape(0)) + " x " + std::to_string(logits.shape(1)));
  }
  if (mask && mask->size() != words) {
    throw Error(ErrorKind::invalid_input,
                "expected a mask of " + std::to_string(words) + " words, got " + std::to_string(mask->size()));
  }
  return {sampler, logits.data() + row * logits.shape(1), mask ? mask->data() : nullptr};
}

nb::tuple answer(const SampleResult& result) {
  nb::list top;
  for (const llm::TokenLogprob& one : result.top) top.append(nb::make_tuple(one.token, one.logprob));
  return nb::make_tuple(static_cast<int>(result.status), result.token, result.logprob, nb::tuple(top));
}

nb::list sample_rows(const std::vector<const TokenSampler*>& samplers, const Logits& logits,
                     const std::vector<std::size_t>& rows, const std::vector<std::optional<Mask>>& masks) {
  if (samplers.size() != rows.size() || samplers.size() != masks.size()) {
    throw Error(ErrorKind::invalid_input, "expected one row and one mask (or None) for each sampler");
  }
  std::vector<Job> jobs;
  jobs.reserve(samplers.size());
  for (std::size_t i = 0; i < samplers.size(); ++i) {
    if (samplers[i] == nullptr) throw Error(ErrorKind::invalid_input, "expected samplers, got None");
    jobs.push_back(job(samplers[i], logits, rows[i], masks[i]));
  }
  const std::vector<SampleResult> results = without_gil([&] {
    thread_local SampleScratch scratch;  // megabytes that are not asked of the system for every step
    std::vector<SampleResult> drawn;
    drawn.reserve(jobs.size());
    for (const Job& one : jobs) drawn.push_back(one.sampler->sample(one.row, one.mask, scratch));
    return drawn;
  });
  nb::list answers;
  for (const SampleResult& result : results) answers.append(answer(result));
  return answers;
}

}  // namespace

void bind_sample(nb::module_& m) {
  nb::class_<TokenSampler>(m, "TokenSampler")
      .def("__init__", &make, nb::arg("vocab"), nb::arg("prompt"), nb::kw_only(), nb::arg("temperature"),
           nb::arg("top_k"), nb::arg("top_p"), nb::arg("min_p"), nb::arg("typical_p"), nb::arg("repetition_penalty"),
           nb::arg("presence_penalty"), nb::arg("frequency_penalty"), nb::arg("bias"), nb::arg("seed"),
           nb::arg("index"), nb::arg("logprobs"))
      .def("accept", &TokenSampler::accept, nb::arg("token"))
      .def_prop_ro("position", &TokenSampler::position);
  m.def("sample_rows", &sample_rows, nb::arg("samplers"), nb::arg("logits"), nb::arg("rows"), nb::arg("masks"),
        nb::sig("def sample_rows(samplers: collections.abc.Sequence[TokenSampler], logits: "
                "numpy.typing.NDArray[numpy.float32], rows: collections.abc.Sequence[int], masks: "
                "collections.abc.Sequence[numpy.typing.NDArray[numpy.uint32] | None]) -> list[tuple[int, int, float, "
                "tuple[tuple[int, float], ...]]]"),
        "For each sampler (status, token, logprob, alternatives), without the GIL.\n\nStatus 1: the row holds a NaN or "
        "+inf; 2: every token is forbidden.");
}

}  // namespace headrace::bind
