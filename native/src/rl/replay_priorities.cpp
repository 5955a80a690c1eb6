#include "headrace/rl/replay_priorities.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "headrace/error.hpp"
#include "replay_random.hpp"

namespace headrace::rl {

using replay_detail::RowBits;
using replay_detail::Stream;

namespace {

constexpr std::uint64_t kAhead = 24;
constexpr std::uint32_t kDraws = 64;  // draws of one row before we take any that is finished

double checked(double value, bool fits, const char* what, const char* expected) {
  if (fits) return value;
  throw Error(ErrorKind::invalid_input,
              std::string("replay ") + what + ": expected " + expected + ", got " + std::to_string(value));
}

}  // namespace

ReplayPriorities::ReplayPriorities(std::shared_ptr<ReplayRing> ring, PriorityOptions options)
    : ring_(std::move(ring)),
      options_(options),
      tree_(ring_->capacity()),
      known_(ring_->capacity(), ReplayRing::kNone) {
  checked(options.alpha, options.alpha >= 0.0 && options.alpha <= 8.0, "alpha", "0..8");
  checked(options.epsilon, options.epsilon >= 0.0 && std::isfinite(options.epsilon), "epsilon", "0 or more, finite");
  floor_ = ring_->floor();
  seen_ = floor_;
}

// Take a slot as it is now: a row we did not know gets the newest priority, an unfinished one none at all.
bool ReplayPriorities::adopt(std::uint64_t slot) {
  const std::int64_t sequence = ring_->sequence(slot);
  if (sequence == known_[slot] && sequence != ReplayRing::kNone) return true;
  known_[slot] = sequence;
  tree_.set(slot, sequence == ReplayRing::kNone ? 0.0 : newest_leaf_);
  return sequence != ReplayRing::kNone;
}

void ReplayPriorities::refresh_range(std::uint64_t first, std::uint64_t end) {
  const std::uint64_t begin = ring_->slot_of(first);
  const std::uint64_t last = begin + (end - first);  // may run past the end of the ring, at most once around
  const auto slot_of = [this](std::uint64_t at) { return at < ring_->capacity() ? at : at - ring_->capacity(); };
  for (std::uint64_t at = begin; at < last; ++at) {
    if (at + kAhead < last) ring_->prefetch(slot_of(at + kAhead));  // it lies in a producer's cache
    const std::uint64_t slot = slot_of(at);
    if (!adopt(slot)) pending_.push_back(slot);
  }
  tree_.update_range(begin, std::min(last, ring_->capacity()));
  if (last > ring_->capacity()) tree_.update_range(0, last - ring_->capacity());
}

void ReplayPriorities::refresh_pending() {
  if (pending_.empty()) return;
  std::sort(pending_.begin(), pending_.end());
  pending_.erase(std::unique(pending_.begin(), pending_.end()), pending_.end());
  changed_.assign(pending_.begin(), pending_.end());
  std::erase_if(pending_, [this](std::uint64_t slot) { return adopt(slot); });
  tree_.update(changed_);
}

void ReplayPriorities::refresh() {
  const std::uint64_t floor = ring_->floor();
  if (floor != floor_) {
    for (std::uint64_t slot = 0; slot < ring_->capacity(); ++slot) tree_.set(slot, 0.0);
    tree_.update_range(0, ring_->capacity());
    std::fill(known_.begin(), known_.end(), ReplayRing::kNone);
    pending_.clear();
    floor_ = floor;
  }
  const ReplayRing::Window now = ring_->window();
  const std::uint64_t first = std::max(seen_, now.first);
  if (first < now.end) refresh_range(first, now.end);
  seen_ = now.end;
  refresh_pending();
}

void ReplayPriorities::sample(std::size_t count, ReplayDraw draw, double beta, std::span<const ReplayColumn> columns,
                              std::int64_t* slots, std::int64_t* sequences, float* weights) {
  if (count == 0) return;
  checked(beta, beta >= 0.0 && std::isfinite(beta), "beta", "0 or more, finite");
  const std::lock_guard lock(mutex_);
  refresh();
  if (tree_.total() <= 0.0) throw Error(ErrorKind::unavailable, "replay memory: no row is finished yet");
  marks_.resize(count);
  found_.resize(count);
  const double part = tree_.total() / static_cast<double>(count);
  const RowBits random(draw, Stream::prioritised, 0);
  for (std::size_t i = 0; i < count; ++i) marks_[i] = (static_cast<double>(i) + random.unit(i)) * part;
  tree_.find(marks_, found_.data());
  for (std::size_t i = 0; i < count; ++i) slots[i] = static_cast<std::int64_t>(found_[i]);
  ring_->gather(count, slots, columns, sequences);
  const auto stale = [&](std::size_t i) {
    return sequences[i] == ReplayRing::kNone || sequences[i] != known_[found_[i]];
  };
  bool again = false;
  for (std::size_t i = 0; i < count; ++i) {
    marks_[i] = tree_.leaf(found_[i]);  // from here on: what each row was drawn with
    if (stale(i)) [[unlikely]] {
      sequences[i] = ReplayRing::kNone;
      again = true;
    }
  }
  for (std::size_t i = 0; again && i < count; ++i) {
    if (sequences[i] != ReplayRing::kNone) continue;
    redraw(i, draw, columns, slots + i, sequences + i);
    marks_[i] = tree_.leaf(static_cast<std::size_t>(slots[i]));
  }
  const double least = *std::min_element(marks_.begin(), marks_.end());
  for (std::size_t i = 0; i < count; ++i)
    weights[i] = std::pow(static_cast<float>(least / marks_[i]), static_cast<float>(beta));
}

// The row was overwritten between our look at it and the copy. Look again, and draw from all there is.
void ReplayPriorities::redraw(std::size_t row, ReplayDraw draw, std::span<const ReplayColumn> columns,
                              std::int64_t* slot, std::int64_t* sequence) {
  std::vector<ReplayColumn> mine(columns.begin(), columns.end());
  for (ReplayColumn& column : mine) column.data += static_cast<std::ptrdiff_t>(row) * column.stride;
  const auto copied = [&](std::size_t index) {
    *slot = static_cast<std::int64_t>(index);
    ring_->gather(1, slot, mine, sequence);
    return *sequence != ReplayRing::kNone && *sequence == known_[index];
  };
  for (std::uint32_t attempt = 1; attempt <= kDraws; ++attempt) {
    refresh();
    if (tree_.total() <= 0.0) break;
    const double mark = RowBits(draw, Stream::prioritised, attempt).unit(row) * tree_.total();
    std::size_t index = 0;
    tree_.find({&mark, 1}, &index);
    if (copied(index)) return;
  }
  for (std::size_t index = 0; index < tree_.leaves(); ++index) {
    if (tree_.leaf(index) > 0.0 && copied(index)) return;
  }
  throw Error(ErrorKind::unavailable, "replay memory: every row is overwritten before it can be read");
}

std::size_t ReplayPriorities::update(std::size_t count, const std::int64_t* slots, const std::int64_t* sequences,
                                     const float* priorities) {
  const auto refuse = [](const char* what, std::size_t i, const std::string& expected, const std::string& got) {
    throw Error(ErrorKind::invalid_input,
                std::string(what) + "[" + std::to_string(i) + "]: expected " + expected + ", got " + got);
  };
  for (std::size_t i = 0; i < count; ++i) {
    if (!(priorities[i] >= 0.0F) || !std::isfinite(priorities[i]))
      refuse("priorities", i, "0 or more, finite", std::to_string(priorities[i]));
    if (slots[i] < 0 || static_cast<std::uint64_t>(slots[i]) >= ring_->capacity())
      refuse("slots", i, "0.." + std::to_string(ring_->capacity() - 1), std::to_string(slots[i]));
  }
  const std::lock_guard lock(mutex_);
  refresh();
  changed_.clear();
  for (std::size_t i = 0; i < count; ++i) {
    const auto slot = static_cast<std::uint64_t>(slots[i]);
    if (sequences[i] == ReplayRing::kNone || known_[slot] != sequences[i]) continue;
    const double leaf = static_cast<double>(
        std::pow(priorities[i] + static_cast<float>(options_.epsilon), static_cast<float>(options_.alpha)));
    tree_.set(slot, leaf);
    newest_leaf_ = std::max(newest_leaf_, leaf);
    changed_.push_back(slot);
  }
  tree_.update(changed_);
  return changed_.size();
}

void ReplayPriorities::leaves(double* out) {
  const std::lock_guard lock(mutex_);
  refresh();
  for (std::size_t slot = 0; slot < tree_.leaves(); ++slot) out[slot] = tree_.leaf(slot);
}

double ReplayPriorities::newest_leaf() const {
  const std::lock_guard lock(mutex_);
  return newest_leaf_;
}

void ReplayPriorities::restore(const double* leaves, double newest_leaf) {
  const auto good = [](double leaf) { return std::isfinite(leaf) && leaf >= 0.0; };
  checked(newest_leaf, good(newest_leaf) && newest_leaf > 0.0, "newest priority", "more than 0, finite");
  for (std::size_t slot = 0; slot < tree_.leaves(); ++slot)
    checked(leaves[slot], good(leaves[slot]), "priority", "0 or more, finite");
  const std::lock_guard lock(mutex_);
  newest_leaf_ = newest_leaf;
  refresh();
  for (std::size_t slot = 0; slot < tree_.leaves(); ++slot) {
    if (known_[slot] != ReplayRing::kNone) tree_.set(slot, leaves[slot]);
  }
  tree_.update_range(0, tree_.leaves());
}

void ReplayPriorities::check_integrity() {
  const std::lock_guard lock(mutex_);
  refresh();
  if (!tree_.consistent()) throw Error(ErrorKind::integrity_error, "replay priorities: a sum is not that of its parts");
  for (std::size_t slot = 0; slot < tree_.leaves(); ++slot) {
    if (known_[slot] == ReplayRing::kNone && tree_.leaf(slot) != 0.0) {
      throw Error(ErrorKind::integrity_error,
                  "replay priorities: slot " + std::to_string(slot) + " has one and no finished row");
    }
  }
}

}  // namespace headrace::rl
