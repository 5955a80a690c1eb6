#include "headrace/rl/learner.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "headrace/error.hpp"
#include "headrace/simd/choose.hpp"
#include "headrace/team.hpp"
#include "learner_batch.hpp"
#include "learner_kernels.hpp"
#include "learner_plan.hpp"

namespace headrace::rl {
namespace {

using namespace learning;

constexpr std::size_t kSlices = 16;  // of a minibatch at most: threads that can share one

const LearnerKernels& kernels_of(Isa isa) {
#if defined(__x86_64__)
  return for_isa<LearnerKernels>(isa, &kLearnerScalar, &kLearnerAvx2, &kLearnerAvx512, nullptr);
#elif defined(__aarch64__)
  return for_isa<LearnerKernels>(isa, &kLearnerScalar, nullptr, nullptr, &kLearnerNeon);
#else
  return for_isa<LearnerKernels>(isa, &kLearnerScalar, nullptr, nullptr, nullptr);
#endif
}

[[noreturn]] void reject(const std::string& message) {
  throw Error(ErrorKind::invalid_input, "learner: " + message);
}

/// Floats on cache lines of their own, zero at first.
class Floats {
 public:
  explicit Floats(std::size_t size) : size_(size), data_(new (std::align_val_t{64}) float[wide(size)]()) {}
  ~Floats() { ::operator delete[](data_, std::align_val_t{64}); }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;

  [[nodiscard]] float* data() const noexcept { return data_; }
  void copy_from(const Floats& other) noexcept { std::memcpy(data_, other.data_, size_ * sizeof(float)); }

 private:
  std::size_t size_;
  float* data_;
};

/// Memory of one thread, cut up.
class Workspace {
 public:
  explicit Workspace(const Packing& packing) : floats_(size(packing)) {
    const Plan& plan = packing.plan();
    float* next = floats_.data();
    const auto take = [&](std::size_t n) { return std::exchange(next, next + n); };
    const std::size_t outputs = std::max<std::size_t>(plan.outputs, 1) * kRows;
    scratch_.x = take(kRows * wide(plan.obs_size));
    scratch_.hidden = take(packing.hidden_size());
    for (float** to : {&scratch_.out, &scratch_.d_out, &scratch_.probs, &scratch_.scaled}) *to = take(outputs);
    scratch_.actions = take(plan.actions * kRows);
    for (float** to : {&scratch_.log_probs, &scratch_.advantages, &scratch_.values, &scratch_.returns}) {
      *to = take(kRows);
    }
    scratch_.zeros = take(packing.widest());
  }

  [[nodiscard]] const Scratch& scratch() const noexcept { return scratch_; }

 private:
  static std::size_t size(const Packing& packing) {
    const Plan& plan = packing.plan();
    return kRows * (wide(plan.obs_size) + 4 * std::max<std::size_t>(plan.outputs, 1) + plan.actions + 4) +
           packing.hidden_size() + packing.widest();
  }

  Floats floats_;
  Scratch scratch_{};
};

struct alignas(64) Slice {
  LossSums sums{};
};

void check_range(const char* name, double value, bool holds, const char* expected) {
  if (!holds) reject(std::string(name) + ": expected " + expected + ", got " + std::to_string(value));
}

void check(const LearnOptions& o, std::size_t count) {
  const auto positive = [](const char* name, double x) { check_range(name, x, x > 0.0, "a positive number"); };
  const auto finite = [](const char* name, double x, bool holds, const char* expected) {
    check_range(name, x, holds && std::isfinite(x), expected);
  };
  check_range("epochs", static_cast<double>(o.epochs), o.epochs >= 1 && o.epochs <= 1000, "1..1000");
  if (o.minibatches < 1 || o.minibatches > count) {
    reject("minibatches: expected 1.." + std::to_string(count) + ", the number of samples, got " +
           std::to_string(o.minibatches));
  }
  positive("clip", static_cast<double>(o.clip));
  positive("value_clip", static_cast<double>(o.value_clip));
  positive("max_grad_norm", static_cast<double>(o.max_grad_norm));
  positive("target_kl", static_cast<double>(o.target_kl));
  const auto value = static_cast<double>(o.value_coef);
  finite("value_coef", value, value >= 0.0, "a number of at least 0");
  const auto entropy = static_cast<double>(o.entropy_coef);
  finite("entropy_coef", entropy, true, "a finite number");
  finite("learning_rate", o.learning_rate, o.learning_rate >= 0.0, "a number of at least 0");
  check_range("beta1", o.beta1, o.beta1 >= 0.0 && o.beta1 < 1.0, "a number in [0, 1)");
  check_range("beta2", o.beta2, o.beta2 >= 0.0 && o.beta2 < 1.0, "a number in [0, 1)");
  finite("epsilon", o.epsilon, o.epsilon > 0.0, "a positive number");
}

}  // namespace

struct Learner::Impl {
  Impl(MlpSpec s, std::uint64_t key, std::size_t threads, Isa isa)
      : spec(std::move(s)),
        packing(spec),
        kernels(kernels_of(isa)),
        seed(key),
        team(threads),
        packed(packing.packed_size()),
        first(packing.packed_size()),
        second(packing.packed_size()),
        mirror(packing.mirror_size()),
        old_packed(packing.packed_size()),
        old_first(packing.packed_size()),
        old_second(packing.packed_size()),
        gradients(packing.packed_size() * kSlices),
        squares(packing.segments().size()) {
    for (std::size_t rank = 0; rank < threads; ++rank) workspaces.push_back(std::make_unique<Workspace>(packing));
  }

  MlpSpec spec;
  Packing packing;
  const LearnerKernels& kernels;
  std::uint64_t seed;
  Team team;
  Floats packed, first, second, mirror;
  Floats old_packed, old_first, old_second;  // what an update that fails goes back to
  Floats gradients;                          // [kSlices][packed_size]
  std::vector<double> squares;               // of each segment of the gradient
  Slice slices[kSlices];
  std::vector<std::unique_ptr<Workspace>> workspaces;
  std::uint64_t steps = 0;
  std::uint64_t updates = 0;
  mutable std::mutex mutex;  // one call at a time

  // Of the update that runs:
  const Experience* experience = nullptr;
  const LearnOptions* options = nullptr;
  std::vector<std::uint32_t> orders;  // [epochs][count]
  std::vector<Normal> normals;        // [epochs][minibatches]
  std::vector<std::string> faults;    // of each thread's part of the experience
  std::atomic<std::size_t> next_slice{0};
  LearnReport report;
  bool overflow = false;

  struct Minibatch {
    const std::uint32_t* order;
    std::size_t count;
    Normal normal;
  };

  [[nodiscard]] Minibatch minibatch(std::size_t epoch, std::size_t k) const {
    const std::size_t begin = minibatch_begin(experience->count, options->minibatches, k);
    const std::size_t end = minibatch_begin(experience->count, options->minibatches, k + 1);
    return {orders.data() + epoch * experience->count + begin, end - begin, normals[epoch * options->minibatches + k]};
  }

  void prepare(std::size_t rank) {
    const std::size_t count = experience->count;
    faults[rank] = fault_in(*experience, spec, count * rank / team.size(), count * (rank + 1) / team.size());
    for (std::size_t epoch = rank; epoch < options->epochs; epoch += team.size()) {
      shuffle(orders.data() + epoch * count, count, seed, updates, static_cast<std::uint32_t>(epoch));
      for (std::size_t k = 0; options->normalise_advantages && k < options->minibatches; ++k) {
        const Minibatch part = minibatch(epoch, k);
        normals[epoch * options->minibatches + k] = normal_of(experience->advantages, part.order, part.count);
      }
    }
  }

  /// Slices of whole tiles, as long as there are enough of them.
  static std::size_t slices_of(std::size_t count) { return std::clamp<std::size_t>(count / kRows, 1, kSlices); }

  void add_gradients(std::size_t rank, const Minibatch& part) {
    const std::size_t n = slices_of(part.count);
    const Terms terms{.advantage_shift = part.normal.shift,
                      .advantage_scale = part.normal.scale,
                      .weight = 1.0F / static_cast<float>(part.count),
                      .clip = options->clip,
                      .value_clip = options->value_clip,
                      .value_coef = options->value_coef,
                      .entropy_coef = options->entropy_coef,
                      .ratio = options->ratio};
    for (;;) {
      const std::size_t k = next_slice.fetch_add(1, std::memory_order_relaxed);
      if (k >= n) return;
      float* to = gradients.data() + k * packing.packed_size();
      std::memset(to, 0, packing.packed_size() * sizeof(float));
      slices[k].sums = {};
      const std::size_t begin = minibatch_begin(part.count, n, k);
      kernels.gradients(packing.plan(), packed.data(), mirror.data(), *experience, part.order + begin,
                        minibatch_begin(part.count, n, k + 1) - begin, terms, workspaces[rank]->scratch(), to,
                        slices[k].sums);
    }
  }

  /// Call fn(segment number) for this thread's share.
  template <class Fn>
  void share(std::size_t rank, Fn fn) {
    const std::size_t n = packing.segments().size();
    for (std::size_t i = n * rank / team.size(); i < n * (rank + 1) / team.size(); ++i) fn(i);
  }

  [[nodiscard]] LossSums sums_of(std::size_t n) const {
    LossSums total{};
    for (std::size_t k = 0; k < n; ++k) {
      total.policy += slices[k].sums.policy;
      total.value += slices[k].sums.value;
      total.entropy += slices[k].sums.entropy;
      total.kl += slices[k].sums.kl;
      total.clipped += slices[k].sums.clipped;
    }
    return total;
  }

  void record(const LossSums& sums, double count, double norm) {
    report.policy += sums.policy / count;
    report.value += sums.value / count;
    report.entropy += sums.entropy / count;
    report.approx_kl += sums.kl / count;
    report.clip_fraction += sums.clipped / count;
    report.grad_norm += norm;
  }

  [[nodiscard]] AdamStep adam(double norm, std::uint64_t at) const {
    const double limit = static_cast<double>(options->max_grad_norm);
    const double rate = options->learning_rate / (1.0 - std::pow(options->beta1, static_cast<double>(at)));
    const double root = 1.0 / std::sqrt(1.0 - std::pow(options->beta2, static_cast<double>(at)));
    return {.scale = static_cast<float>(std::isfinite(limit) ? std::min(1.0, limit / (norm + 1e-6)) : 1.0),
            .keep1 = static_cast<float>(options->beta1),
            .keep2 = static_cast<float>(options->beta2),
            .take1 = static_cast<float>(1.0 - options->beta1),
            .take2 = static_cast<float>(1.0 - options->beta2),
            .rate = static_cast<float>(rate),
            .root = static_cast<float>(root),
            .epsilon = static_cast<float>(options->epsilon)};
  }

  /// One minibatch, on every thread. Each decides from the same numbers whether to go on: false if not.
  bool learn(std::size_t rank, const Minibatch& part, std::uint64_t step) {
    const std::size_t n = slices_of(part.count);
    add_gradients(rank, part);
    team.barrier();
    if (rank == 0) next_slice.store(0, std::memory_order_relaxed);
    share(rank, [&](std::size_t i) {
      squares[i] = kernels.add_up(packing.segments()[i], n, packing.packed_size(), gradients.data());
    });
    const LossSums sums = sums_of(n);
    team.barrier();
    double square = 0.0;
    for (const double each : squares) square += each;
    const double norm = std::sqrt(square);
    const double kl = sums.kl / static_cast<double>(part.count);
    const bool finite = std::isfinite(norm) && std::isfinite(sums.policy + sums.value + sums.entropy);
    const bool beyond = kl > static_cast<double>(options->target_kl);
    if (rank == 0) {
      record(sums, static_cast<double>(part.count), norm);
      overflow = !finite;
      report.stopped = beyond;
      if (finite && !beyond) ++report.steps;
    }
    if (!finite || beyond) return false;
    const AdamStep how = adam(norm, step);
    share(rank, [&](std::size_t i) {
      kernels.step(packing.segments()[i], how, gradients.data(), packed.data(), first.data(), second.data(),
                   mirror.data());
    });
    team.barrier();
    return true;
  }

  void run(std::size_t rank) {
    prepare(rank);
    team.barrier();
    for (const std::string& fault : faults) {
      if (!fault.empty()) return;
    }
    std::uint64_t step = steps;
    for (std::size_t epoch = 0; epoch < options->epochs; ++epoch) {
      for (std::size_t k = 0; k < options->minibatches; ++k) {
        if (!learn(rank, minibatch(epoch, k), ++step)) return;
      }
    }
  }

  LearnReport update(const Experience& of, const LearnOptions& how) {
    if (of.count < 1 || of.count > 0xFFFFFFFFU)
      reject("expected 1..4294967295 samples, got " + std::to_string(of.count));
    check(how, of.count);
    const std::scoped_lock lock(mutex);
    experience = &of;
    options = &how;
    orders.resize(how.epochs * of.count);
    normals.assign(how.epochs * how.minibatches, {});
    faults.assign(team.size(), {});
    next_slice = 0;
    report = {};
    overflow = false;
    old_packed.copy_from(packed);
    old_first.copy_from(first);
    old_second.copy_from(second);
    team.run([this](std::size_t rank) { run(rank); });
    for (const std::string& fault : faults) {
      if (!fault.empty()) reject(fault);
    }
    if (overflow) {
      packed.copy_from(old_packed);
      first.copy_from(old_first);
      second.copy_from(old_second);
      packing.reflect(packed.data(), mirror.data());
      reject("the gradient is not finite after " + std::to_string(report.steps) +
             " steps of this update; the parameters are as before it");
    }
    finish();
    return report;
  }

  void finish() {
    const auto minibatches = static_cast<double>(report.steps + (report.stopped ? 1 : 0));
    for (double* sum : {&report.policy, &report.value, &report.entropy, &report.approx_kl, &report.clip_fraction,
                        &report.grad_norm}) {
      *sum /= minibatches;
    }
    report.explained_variance = explained_variance(experience->returns, experience->values, experience->count);
    steps += report.steps;
    ++updates;
  }
};

Learner::Learner(MlpSpec spec, std::uint64_t seed, std::size_t threads, Isa isa)
    : impl_(std::make_unique<Impl>(std::move(spec), seed, threads, isa)) {}

Learner::~Learner() = default;

void Learner::load(const LearnState& state) {
  Impl& in = *impl_;
  const std::size_t size = in.packing.layout().size;
  const std::pair<const char*, std::span<float>> parts[] = {{"parameters", state.parameters},
                                                            {"first_moments", state.first_moments},
                                                            {"second_moments", state.second_moments}};
  for (const auto& [name, part] : parts) {
    if (part.size() != size) {
      reject(std::string(name) + ": expected " + std::to_string(size) + " numbers, got " + std::to_string(part.size()));
    }
    for (std::size_t i = 0; i < size; ++i) {
      if (std::isfinite(part[i])) continue;
      reject(std::string(name) + "[" + std::to_string(i) + "]: expected a finite number, got " +
             std::to_string(part[i]));
    }
  }
  const std::scoped_lock lock(in.mutex);
  in.packing.pack(state.parameters.data(), in.packed.data());
  in.packing.pack(state.first_moments.data(), in.first.data());
  in.packing.pack(state.second_moments.data(), in.second.data());
  in.packing.reflect(in.packed.data(), in.mirror.data());
  in.steps = state.steps;
  in.updates = state.updates;
}

void Learner::save(LearnState& state) const {
  const Impl& in = *impl_;
  const std::size_t size = in.packing.layout().size;
  if (state.parameters.size() != size || state.first_moments.size() != size || state.second_moments.size() != size) {
    reject("expected room for " + std::to_string(size) + " numbers");
  }
  const std::scoped_lock lock(in.mutex);
  in.packing.unpack(in.packed.data(), state.parameters.data());
  in.packing.unpack(in.first.data(), state.first_moments.data());
  in.packing.unpack(in.second.data(), state.second_moments.data());
  state.steps = in.steps;
  state.updates = in.updates;
}

LearnReport Learner::update(const Experience& experience, const LearnOptions& options) {
  return impl_->update(experience, options);
}

const MlpSpec& Learner::spec() const noexcept {
  return impl_->spec;
}

const MlpLayout& Learner::layout() const noexcept {
  return impl_->packing.layout();
}

}  // namespace headrace::rl
