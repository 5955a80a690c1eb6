#include "learner_batch.hpp"

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "headrace/rl/philox.hpp"

namespace headrace::rl::learning {
namespace {

constexpr std::uint64_t kShuffleDomain = 0x73687566666C6500U;  // "shuffle": apart from others' random numbers
constexpr std::uint32_t kExponent = 0x7F800000U;

bool finite(float x) {
  return (std::bit_cast<std::uint32_t>(x) & kExponent) != kExponent;
}

std::string fault_in_floats(const char* name, const float* values, std::size_t first, std::size_t last,
                            std::size_t width) {
  std::uint32_t bad = 0;  // without a branch, so that the compiler makes vectors of it
  for (std::size_t i = first * width; i < last * width; ++i) {
    bad |= (std::bit_cast<std::uint32_t>(values[i]) & kExponent) == kExponent ? 1U : 0U;
  }
  if (bad == 0) return {};
  std::size_t at = first * width;
  while (finite(values[at])) ++at;
  std::string place = name;
  place.append("[").append(std::to_string(at / width));
  if (width > 1) place.append("][").append(std::to_string(at % width));
  return place.append("]: expected a finite number, got ").append(std::to_string(values[at]));
}

std::string fault_in_choices(const std::int32_t* actions, const Head& head, std::size_t first, std::size_t last) {
  const std::size_t heads = head.sizes.size();
  for (std::size_t i = first; i < last; ++i) {
    for (std::size_t k = 0; k < heads; ++k) {
      const std::int32_t action = actions[i * heads + k];
      if (action >= 0 && static_cast<std::size_t>(action) < head.sizes[k]) continue;
      return "actions[" + std::to_string(i) + "][" + std::to_string(k) + "]: expected 0.." +
             std::to_string(head.sizes[k] - 1) + ", got " + std::to_string(action);
    }
  }
  return {};
}

/// Uniform numbers below a bound, from the words of one Philox stream.
class Stream {
 public:
  Stream(std::uint64_t seed, std::uint64_t update, std::uint32_t epoch)
      : key_(seed ^ kShuffleDomain),
        counter_{{0, epoch, static_cast<std::uint32_t>(update), static_cast<std::uint32_t>(update >> 32U)}} {}

  /// Without bias: Lemire 2019.
  std::uint32_t below(std::uint32_t bound) {
    std::uint64_t product = std::uint64_t{next()} * bound;
    if (static_cast<std::uint32_t>(product) < bound) {
      const std::uint32_t threshold = (0U - bound) % bound;
      while (static_cast<std::uint32_t>(product) < threshold) product = std::uint64_t{next()} * bound;
    }
    return static_cast<std::uint32_t>(product >> 32U);
  }

 private:
  std::uint32_t next() {
    if (used_ == 4) {
      words_ = philox(counter_, key_);
      ++counter_.word[0];
      used_ = 0;
    }
    return words_.word[used_++];
  }

  std::uint64_t key_;
  Words counter_;
  Words words_{};
  unsigned used_ = 4;
};

}  // namespace

std::string fault_in(const Experience& in, const MlpSpec& spec, std::size_t first, std::size_t last) {
  std::string fault = fault_in_floats("obs", in.obs, first, last, spec.obs_size);
  if (fault.empty()) {
    if (spec.head.kind == HeadKind::gaussian) {
      fault = fault_in_floats("actions", static_cast<const float*>(in.actions), first, last, spec.head.actions());
    } else {
      fault = fault_in_choices(static_cast<const std::int32_t*>(in.actions), spec.head, first, last);
    }
  }
  if (fault.empty()) fault = fault_in_floats("log_probs", in.log_probs, first, last, 1);
  if (fault.empty()) fault = fault_in_floats("values", in.values, first, last, 1);
  if (fault.empty()) fault = fault_in_floats("advantages", in.advantages, first, last, 1);
  if (fault.empty()) fault = fault_in_floats("returns", in.returns, first, last, 1);
  return fault;
}

void shuffle(std::uint32_t* order, std::size_t count, std::uint64_t seed, std::uint64_t update, std::uint32_t epoch) {
  std::iota(order, order + count, 0U);
  Stream stream(seed, update, epoch);
  for (std::size_t left = count; left > 1; --left) {
    std::swap(order[left - 1], order[stream.below(static_cast<std::uint32_t>(left))]);
  }
}

Normal normal_of(const float* values, const std::uint32_t* order, std::size_t count) {
  if (count < 2) return {};  // nothing to compare with
  double total = 0.0;
  for (std::size_t i = 0; i < count; ++i) total += static_cast<double>(values[order[i]]);
  const double mean = total / static_cast<double>(count);
  double squares = 0.0;
  for (std::size_t i = 0; i < count; ++i) {
    const double distance = static_cast<double>(values[order[i]]) - mean;
    squares += distance * distance;
  }
  const double deviation = std::sqrt(squares / static_cast<double>(count - 1));
  return {static_cast<float>(mean), static_cast<float>(1.0 / (deviation + 1e-8))};
}

double explained_variance(const float* returns, const float* values, std::size_t count) {
  const auto n = static_cast<double>(count);
  double mean = 0.0;
  double mean_error = 0.0;
  for (std::size_t i = 0; i < count; ++i) {
    mean += static_cast<double>(returns[i]);
    mean_error += static_cast<double>(returns[i]) - static_cast<double>(values[i]);
  }
  mean /= n;
  mean_error /= n;
  double spread = 0.0;
  double left = 0.0;
  for (std::size_t i = 0; i < count; ++i) {
    const double distance = static_cast<double>(returns[i]) - mean;
    const double error = static_cast<double>(returns[i]) - static_cast<double>(values[i]) - mean_error;
    spread += distance * distance;
    left += error * error;
  }
  return spread > 0.0 ? 1.0 - left / spread : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace headrace::rl::learning
