#include <algorithm>
#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "check.hpp"
#include "headrace/error.hpp"
#include "headrace/rl/replay_priorities.hpp"
#include "rl_replay_memory.hpp"

using headrace::Error;
using headrace::rl::ReplayPriorities;
using headrace::rl::ReplayRing;
using headrace::rl::SumTree;
using replay_test::make_ring;
using replay_test::Rows;

namespace {

// Rows drawn by priority, with all that comes with them.
struct Drawn {
  explicit Drawn(std::size_t n) : rows({8}, n), slots(n), sequences(n), weights(n) {}
  void draw(ReplayPriorities& from, std::uint64_t number, double beta = 0.5) {
    from.sample(slots.size(), {7, number}, beta, rows.columns(), slots.data(), sequences.data(), weights.data());
  }
  std::size_t update(ReplayPriorities& to, const std::vector<float>& priorities) {
    return to.update(priorities.size(), slots.data(), sequences.data(), priorities.data());
  }
  Rows rows;
  std::vector<std::int64_t> slots;
  std::vector<std::int64_t> sequences;
  std::vector<float> weights;
};

void push(ReplayRing& ring, std::size_t n, std::uint64_t first) {
  Rows rows({8}, n);
  rows.number(first);
  CHECK(ring.push(n, rows.columns()) == n);
}

}  // namespace

TEST(replay_tree_finds_what_a_running_sum_finds) {
  std::mt19937_64 dice(1);
  for (const std::size_t leaves : {1U, 2U, 7U, 8U, 9U, 64U, 65U, 500U, 4097U}) {
    SumTree tree(leaves);
    std::vector<double> naive(leaves, 0.0);
    for (int round = 0; round < 30; ++round) {
      std::vector<std::size_t> changed;
      for (int i = 0; i < 20; ++i) {
        const std::size_t leaf = dice() % leaves;
        naive[leaf] = dice() % 3 == 0 ? 0.0 : static_cast<double>(dice() % 1000) / 8.0;  // sums are exact
        tree.set(leaf, naive[leaf]);
        changed.push_back(leaf);
      }
      if (round % 2 == 0) {
        tree.update(changed);
      } else {
        const auto [low, high] = std::minmax_element(changed.begin(), changed.end());
        tree.update_range(*low, *high + 1);
      }
      CHECK(tree.consistent());
      double total = 0.0;
      for (const double value : naive) total += value;
      CHECK(tree.total() == total);
      if (total == 0.0) continue;
      std::vector<double> marks = {0.0, std::nextafter(total, 0.0)};
      for (int i = 0; i < 100; ++i) marks.push_back(static_cast<double>(dice() >> 11U) * 0x1.0p-53 * total);
      std::vector<std::size_t> found(marks.size());
      tree.find(marks, found.data());
      for (std::size_t i = 0; i < marks.size(); ++i) {
        std::size_t expected = 0;
        double before = 0.0;
        while (before + naive[expected] <= marks[i]) before += naive[expected++];
        CHECK(found[i] == expected && naive[found[i]] > 0.0);
      }
    }
  }
}

TEST(replay_tree_never_finds_a_leaf_of_zero_whatever_is_rounded) {
  std::mt19937_64 dice(2);
  SumTree tree(3000);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::size_t> changed(100);
    for (auto& leaf : changed) {
      leaf = dice() % 3000;
      tree.set(leaf, dice() % 2 == 0 ? 0.0 : std::exp(static_cast<double>(dice() % 60) - 30.0) / 3.0);
    }
    tree.update(changed);
    std::vector<double> marks(300);
    for (auto& mark : marks) mark = static_cast<double>(dice() >> 11U) * 0x1.0p-53 * tree.total();
    marks[0] = tree.total();  // beyond the end
    marks[1] = std::nextafter(tree.total(), 0.0);
    std::vector<std::size_t> found(marks.size());
    tree.find(marks, found.data());
    for (const std::size_t leaf : found) CHECK(leaf < 3000 && tree.leaf(leaf) > 0.0);
  }
}

TEST(replay_priorities_draw_in_proportion_and_weigh_against_it) {
  const auto ring = make_ring({8}, 40);
  ReplayPriorities priorities(ring, {.alpha = 0.7, .epsilon = 0.0});
  Drawn all(40);
  CHECK_THROWS(Error, all.draw(priorities, 0));
  push(*ring, 40, 0);
  all.draw(priorities, 0);  // all alike: one from each part
  for (std::size_t i = 0; i < 40; ++i)
    CHECK(all.sequences[i] == static_cast<std::int64_t>(i) && all.weights[i] == 1.0F);
  std::vector<float> values(40);
  for (std::size_t i = 0; i < 40; ++i) values[i] = static_cast<float>(i);
  CHECK(all.update(priorities, values) == 40);
  double total = 0.0;
  for (const float value : values) total += std::pow(static_cast<double>(value), 0.7);
  constexpr std::size_t kBatch = 16;  // fewer than rows, so that strata cut across them
  constexpr int kBatches = 4000;
  std::vector<double> counts(40, 0.0);
  Drawn drawn(kBatch);
  for (int b = 0; b < kBatches; ++b) {
    drawn.draw(priorities, static_cast<std::uint64_t>(b));
    const auto least = static_cast<double>(*std::min_element(drawn.sequences.begin(), drawn.sequences.end()));
    for (std::size_t i = 0; i < kBatch; ++i) {
      const auto row = static_cast<std::size_t>(drawn.sequences[i]);
      CHECK(drawn.rows.value(i) == row);
      counts[row] += 1.0;
      const double weight = std::pow(std::pow(least / static_cast<double>(row), 0.7), 0.5);
      CHECK(std::abs(static_cast<double>(drawn.weights[i]) - weight) < 1e-5);
    }
  }
  double chi = 0.0;
  for (std::size_t i = 1; i < 40; ++i) {
    const double expected = std::pow(static_cast<double>(i), 0.7) / total * kBatch * kBatches;
    chi += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  CHECK(counts[0] == 0.0);  // epsilon is 0
  CHECK(chi < 73.0);        // 38 degrees of freedom: the 0.999 quantile is 70.7; strata only lessen the spread
  priorities.check_integrity();
}

TEST(replay_priorities_of_overwritten_rows_are_dropped_and_new_rows_get_the_highest) {
  const auto ring = make_ring({8}, 8);
  ReplayPriorities priorities(ring, {.alpha = 1.0, .epsilon = 0.0});
  push(*ring, 8, 0);
  Drawn drawn(8);
  drawn.draw(priorities, 0);
  CHECK(drawn.update(priorities, {1, 1, 1, 1, 1, 1, 1, 9}) == 8);
  push(*ring, 3, 8);  // over the first three
  CHECK(drawn.update(priorities, {5, 5, 5, 2, 2, 2, 2, 2}) == 5);
  std::vector<double> leaves(8);
  priorities.leaves(leaves.data());
  CHECK((leaves == std::vector<double>{9, 9, 9, 2, 2, 2, 2, 2}));
  CHECK(priorities.newest_leaf() == 9.0);
  CHECK_THROWS(Error, drawn.update(priorities, {1, 1, 1, -1, 1, 1, 1, 1}));
  CHECK_THROWS(Error, drawn.update(priorities, {1, 1, 1, NAN, 1, 1, 1, 1}));
  CHECK_THROWS(Error, drawn.update(priorities, {1, 1, 1, INFINITY, 1, 1, 1, 1}));
  drawn.slots[4] = 8;
  CHECK_THROWS(Error, drawn.update(priorities, std::vector<float>(8, 1.0F)));
  priorities.leaves(leaves.data());
  CHECK((leaves == std::vector<double>{9, 9, 9, 2, 2, 2, 2, 2}));  // all or nothing
  ring->clear();
  CHECK_THROWS(Error, drawn.draw(priorities, 1));
  push(*ring, 1, 20);
  drawn.draw(priorities, 2);
  for (std::size_t i = 0; i < 8; ++i) CHECK(drawn.rows.value(i) == 20);
  priorities.check_integrity();
  CHECK_THROWS(Error, ReplayPriorities(ring, {.alpha = -1.0}));
  CHECK_THROWS(Error, ReplayPriorities(ring, {.alpha = 0.5, .epsilon = NAN}));
  CHECK_THROWS(Error, drawn.draw(priorities, 3, -0.5));
}

TEST(replay_priorities_wait_for_no_unfinished_row) {
  const auto ring = make_ring({8}, 8);
  ReplayPriorities priorities(ring, {});
  push(*ring, 3, 0);
  ReplayRing::Claim claim;
  ring->claim(2, claim);
  push(*ring, 2, 5);
  Drawn drawn(50);
  for (std::uint64_t number = 0; number < 3; ++number) {
    drawn.draw(priorities, number);
    for (const std::int64_t sequence : drawn.sequences) CHECK(sequence < 3 || sequence > 4);
  }
  ring->publish(claim);
  drawn.draw(priorities, 9);
  CHECK(std::count(drawn.sequences.begin(), drawn.sequences.end(), 3) > 0);
  CHECK(std::count(drawn.sequences.begin(), drawn.sequences.end(), 4) > 0);
  priorities.check_integrity();
}

TEST(replay_priorities_keep_up_with_producers) {
  const auto ring = make_ring({8}, 64);
  std::atomic<bool> stop{false};
  std::vector<std::thread> producers;
  for (std::uint64_t p = 0; p < 2; ++p) {
    producers.emplace_back([&, p] {
      Rows rows({8}, 5);
      for (std::uint64_t value = p << 40U; !stop; value += 5) {
        rows.number(value);
        CHECK(ring->push(5, rows.columns()) == 5);
      }
    });
  }
  while (ring->size() < 64) std::this_thread::yield();
  ReplayPriorities priorities(ring, {});
  Drawn drawn(32);
  const std::vector<float> values(32, 0.5F);
  for (std::uint64_t number = 0; number < 300; ++number) {
    drawn.draw(priorities, number);
    for (std::size_t i = 0; i < 32; ++i) {
      CHECK(drawn.rows.whole(i) && std::isfinite(drawn.weights[i]) && drawn.weights[i] > 0.0F);
      CHECK(drawn.weights[i] <= 1.0F);
    }
    CHECK(drawn.update(priorities, values) <= 32);
    priorities.check_integrity();
  }
  stop = true;
  for (auto& thread : producers) thread.join();
}

TEST(replay_priorities_go_on_from_what_was_saved) {
  const auto ring = make_ring({8}, 20);
  push(*ring, 33, 0);
  ReplayPriorities before(ring, {});
  Drawn drawn(16);
  drawn.draw(before, 0);
  std::vector<float> values(16);
  for (std::size_t i = 0; i < 16; ++i) values[i] = static_cast<float>(i) * 0.3F;
  CHECK(drawn.update(before, values) == 16);
  std::vector<double> leaves(20);
  before.leaves(leaves.data());
  const auto copy = make_ring({8}, 20, 13);
  push(*copy, 20, 13);
  ReplayPriorities after(copy, {});
  after.restore(leaves.data(), before.newest_leaf());
  Drawn again(16);
  for (std::uint64_t number = 1; number < 20; ++number) {
    drawn.draw(before, number);
    again.draw(after, number);
    CHECK(drawn.sequences == again.sequences && drawn.weights == again.weights && drawn.slots == again.slots);
  }
  leaves[3] = -1.0;
  CHECK_THROWS(Error, after.restore(leaves.data(), 1.0));
}
