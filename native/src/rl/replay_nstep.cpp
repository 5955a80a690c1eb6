#include "headrace/rl/replay_nstep.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "headrace/error.hpp"

namespace headrace::rl {

namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::invalid_input, "n-step " + what);
}

}  // namespace

NStepAssembler::NStepAssembler(std::shared_ptr<ReplayRing> ring, std::vector<NStepRole> roles, std::size_t streams,
                               std::size_t n, double gamma)
    : ring_(std::move(ring)), roles_(std::move(roles)), n_(n), streams_(streams), image_bytes_(ring_->slot_bytes()) {
  if (roles_.size() != ring_->n_fields())
    refuse("roles: expected " + std::to_string(ring_->n_fields()) + ", got " + std::to_string(roles_.size()));
  for (const NStepRole role : {NStepRole::reward, NStepRole::discount}) {
    const auto field = static_cast<std::size_t>(std::find(roles_.begin(), roles_.end(), role) - roles_.begin());
    if (std::count(roles_.begin(), roles_.end(), role) != 1 || ring_->field_bytes(field) != sizeof(float))
      refuse("roles: expected one float32 reward and one float32 discount");
  }
  if (streams < 1 || streams > (std::size_t{1} << 32U))
    refuse("streams: expected 1 or more, got " + std::to_string(streams));
  if (n < 1 || n > 1024) refuse("n: expected 1..1024, got " + std::to_string(n));
  if (!(gamma >= 0.0 && gamma <= 1.0)) refuse("gamma: expected 0..1, got " + std::to_string(gamma));
  powers_.push_back(1.0);
  for (std::size_t i = 0; i < n; ++i) powers_.push_back(powers_.back() * gamma);
  images_.resize(streams * n * image_bytes_);
  returns_.resize(streams * n);
}

void NStepAssembler::discard(std::size_t stream) {
  if (stream >= streams_.size())
    refuse("stream: expected 0.." + std::to_string(streams_.size() - 1) + ", got " + std::to_string(stream));
  streams_[stream] = {};
}

std::size_t NStepAssembler::push(const NStepStep& step) {
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    if (step.active != nullptr && step.active[s] == 0) continue;
    if (!std::isfinite(step.rewards[s]))
      refuse("reward of stream " + std::to_string(s) + ": expected a finite number, got " +
             std::to_string(step.rewards[s]));
  }
  pushed_ = 0;
  rows_.clear();
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    if (step.active != nullptr && step.active[s] == 0) continue;
    remember(step, s);
    const bool terminated = step.terminated[s] != 0;
    emit(step, s, terminated, terminated || step.truncated[s] != 0);
  }
  flush(step);
  return pushed_;
}

// Add this step to the chains that are open and begin one of its own.
void NStepAssembler::remember(const NStepStep& step, std::size_t stream) {
  Stream& at = streams_[stream];
  const auto reward = static_cast<double>(step.rewards[stream]);
  for (std::size_t age = 0; age < at.count; ++age) returns_[index(stream, age)] += powers_[at.count - age] * reward;
  const std::size_t mine = index(stream, at.count++);
  returns_[mine] = reward;
  std::byte* image = images_.data() + mine * image_bytes_;
  for (std::size_t field = 0; field < roles_.size(); ++field) {
    if (roles_[field] != NStepRole::first) continue;
    const ReplayColumn& column = step.columns[field];
    std::memcpy(image + ring_->field_offset(field), column.data + static_cast<std::ptrdiff_t>(stream) * column.stride,
                ring_->field_bytes(field));
  }
}

// All chains where the episode ended, else the one that has n steps now.
void NStepAssembler::emit(const NStepStep& step, std::size_t stream, bool terminated, bool ended) {
  Stream& at = streams_[stream];
  while (at.count > 0 && (ended || at.count == n_)) {
    if (rows_.size() == ReplayRing::kChunk) flush(step);
    const std::size_t oldest = index(stream, 0);
    rows_.push_back({.image = images_.data() + oldest * image_bytes_,
                     .stream = stream,
                     .reward = static_cast<float>(returns_[oldest]),
                     .discount = terminated ? 0.0F : static_cast<float>(powers_[at.count]),
                     .ended = ended});
    at.start = (at.start + 1) % n_;
    --at.count;
  }
}

void NStepAssembler::flush(const NStepStep& step) {
  ReplayRing::Claim claim;
  std::array<const std::byte*, ReplayRing::kChunk> sources;
  for (std::size_t done = 0; done < rows_.size(); done += claim.n) {
    ring_->claim(rows_.size() - done, claim);
    if (claim.n == 0) break;
    for (std::size_t field = 0; field < roles_.size(); ++field) {
      for (std::size_t i = 0; i < claim.n; ++i) {
        const Row& row = rows_[done + i];
        switch (roles_[field]) {
          case NStepRole::first:
            sources[i] = row.image + ring_->field_offset(field);
            break;
          case NStepRole::reward:
            sources[i] = reinterpret_cast<const std::byte*>(&row.reward);
            break;
          case NStepRole::discount:
            sources[i] = reinterpret_cast<const std::byte*>(&row.discount);
            break;
          case NStepRole::next: {
            const bool final = row.ended && step.final_next[field].data != nullptr;
            const ReplayColumn& column = final ? step.final_next[field] : step.columns[field];
            sources[i] = column.data + static_cast<std::ptrdiff_t>(row.stream) * column.stride;
            break;
          }
        }
      }
      ring_->write(claim, field, sources.data());
    }
    ring_->publish(claim);
    pushed_ += claim.n;
  }
  rows_.clear();
}

void NStepAssembler::check(const NStepState& state) const {
  if (state.images.size() != images_.size() || state.returns.size() != returns_.size() ||
      state.starts.size() != streams_.size() || state.counts.size() != streams_.size())
    refuse("state: expected that of " + std::to_string(streams_.size()) + " streams of " + std::to_string(n_) +
           " steps");
}

void NStepAssembler::save(const NStepState& out) const {
  check(out);
  std::copy(images_.begin(), images_.end(), out.images.begin());
  std::copy(returns_.begin(), returns_.end(), out.returns.begin());
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    out.starts[s] = static_cast<std::int64_t>(streams_[s].start);
    out.counts[s] = static_cast<std::int64_t>(streams_[s].count);
  }
}

void NStepAssembler::restore(const NStepState& from) {
  check(from);
  const auto n = static_cast<std::int64_t>(n_);
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    if (from.starts[s] < 0 || from.starts[s] >= n || from.counts[s] < 0 || from.counts[s] >= n)
      refuse("state: stream " + std::to_string(s) + " says what cannot be");
  }
  std::copy(from.images.begin(), from.images.end(), images_.begin());
  std::copy(from.returns.begin(), from.returns.end(), returns_.begin());
  for (std::size_t s = 0; s < streams_.size(); ++s)
    streams_[s] = {static_cast<std::size_t>(from.starts[s]), static_cast<std::size_t>(from.counts[s])};
}

}  // namespace headrace::rl
