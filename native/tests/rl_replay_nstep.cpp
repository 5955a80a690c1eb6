#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "check.hpp"
#include "headrace/error.hpp"
#include "headrace/rl/replay_nstep.hpp"
#include "rl_replay_memory.hpp"

using headrace::Error;
using headrace::rl::NStepAssembler;
using headrace::rl::NStepRole;
using headrace::rl::NStepState;
using headrace::rl::NStepStep;
using headrace::rl::ReplayColumn;
using headrace::rl::ReplayRing;
using replay_test::make_ring;

namespace {

// Fields: obs float[2] (the step's number, the stream), action int, reward, next_obs float[2], discount.
const std::vector<std::size_t> kFields = {8, 4, 4, 8, 4};
const std::vector<NStepRole> kRoles = {NStepRole::first, NStepRole::first, NStepRole::reward, NStepRole::next,
                                       NStepRole::discount};

struct Step {
  float obs[2];
  std::int32_t action;
  float reward;
  float next[2];
  float final[2];
  std::uint8_t terminated;
  std::uint8_t truncated;
  std::uint8_t active;
};

struct Row {
  float obs[2];
  std::int32_t action;
  float reward;
  float next[2];
  float discount;
  bool operator==(const Row& other) const = default;
};

// All steps of one stream, and what must come of them: straight from the definition.
std::vector<Row> oracle(const std::vector<Step>& all, std::size_t n, double gamma) {
  std::vector<Step> steps;
  for (const Step& step : all) {
    if (step.active != 0) steps.push_back(step);
  }
  std::vector<Row> rows;
  for (std::size_t t = 0; t < steps.size(); ++t) {
    double reward = 0.0;
    double power = 1.0;
    for (std::size_t k = 0; k < n && t + k < steps.size(); ++k) {
      const Step& last = steps[t + k];
      reward += power * static_cast<double>(last.reward);
      power *= gamma;
      const bool ended = last.terminated != 0 || last.truncated != 0;
      if (!ended && k + 1 < n) continue;
      const float* next = ended ? last.final : last.next;
      rows.push_back({{steps[t].obs[0], steps[t].obs[1]},
                      steps[t].action,
                      static_cast<float>(reward),
                      {next[0], next[1]},
                      last.terminated != 0 ? 0.0F : static_cast<float>(power)});
      break;
    }
  }
  return rows;
}

ReplayColumn column(void* data, std::size_t stride = sizeof(Step)) {
  return {static_cast<std::byte*>(data), static_cast<std::ptrdiff_t>(stride)};
}

struct Play {
  Play(std::size_t streams, std::size_t n, double gamma)
      : ring(make_ring(kFields, 100'000)), assembler(ring, kRoles, streams, n, gamma), now(streams), all(streams) {}

  std::size_t push() {
    std::vector<float> rewards;
    std::vector<std::uint8_t> flags[3];
    for (const Step& step : now) {
      rewards.push_back(step.reward);
      flags[0].push_back(step.terminated);
      flags[1].push_back(step.truncated);
      flags[2].push_back(step.active);
    }
    const std::vector<ReplayColumn> columns = {column(now[0].obs), column(&now[0].action), {}, column(now[0].next), {}};
    const std::vector<ReplayColumn> finals = {{}, {}, {}, column(now[0].final), {}};
    const std::size_t pushed = assembler.push({.columns = columns,
                                               .final_next = finals,
                                               .rewards = rewards.data(),
                                               .terminated = flags[0].data(),
                                               .truncated = flags[1].data(),
                                               .active = flags[2].data()});
    for (std::size_t s = 0; s < now.size(); ++s) all[s].push_back(now[s]);
    return pushed;
  }

  std::vector<Row> rows() const {
    std::vector<Row> found(ring->size());
    std::vector<std::int64_t> slots(found.size());
    std::vector<std::int64_t> sequences(found.size());
    for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int64_t>(i);
    const std::vector<ReplayColumn> columns = {
        column(found[0].obs, sizeof(Row)), column(&found[0].action, sizeof(Row)), column(&found[0].reward, sizeof(Row)),
        column(found[0].next, sizeof(Row)), column(&found[0].discount, sizeof(Row))};
    CHECK(ring->gather(slots.size(), slots.data(), columns, sequences.data()) == slots.size());
    return found;
  }

  std::shared_ptr<ReplayRing> ring;
  NStepAssembler assembler;
  std::vector<Step> now;
  std::vector<std::vector<Step>> all;
};

void random_step(Play& play, std::mt19937& dice, int t) {
  for (std::size_t s = 0; s < play.now.size(); ++s) {
    const auto number = static_cast<float>(t);
    const auto stream = static_cast<float>(s);
    play.now[s] = {.obs = {number, stream},
                   .action = static_cast<std::int32_t>(dice() % 5),
                   .reward = static_cast<float>(dice() % 1000) / 100.0F - 5.0F,
                   .next = {number + 1.0F, stream},
                   .final = {-number, stream},
                   .terminated = dice() % 9 == 0,
                   .truncated = dice() % 11 == 0,
                   .active = dice() % 13 != 0};
  }
}

}  // namespace

TEST(replay_nstep_rows_follow_from_the_definition) {
  for (const std::size_t n : {1U, 2U, 3U, 5U, 17U}) {
    std::mt19937 dice(static_cast<unsigned>(n));
    Play play(37, n, 0.97);
    std::size_t pushed = 0;
    for (int t = 0; t < 120; ++t) {
      random_step(play, dice, t);
      pushed += play.push();
    }
    const std::vector<Row> rows = play.rows();
    CHECK(rows.size() == pushed);
    for (std::size_t s = 0; s < play.all.size(); ++s) {
      std::vector<Row> mine;
      for (const Row& row : rows) {
        if (row.obs[1] == static_cast<float>(s)) mine.push_back(row);
      }
      CHECK(mine == oracle(play.all[s], n, 0.97));
    }
  }
}

TEST(replay_nstep_goes_on_from_what_was_saved) {
  std::mt19937 dice(3);
  Play before(5, 4, 0.9);
  for (int t = 0; t < 30; ++t) {
    random_step(before, dice, t);
    (void)before.push();
  }
  std::vector<std::byte> images(5 * 4 * before.assembler.image_bytes());
  std::vector<double> returns(20);
  std::vector<std::int64_t> starts(5);
  std::vector<std::int64_t> counts(5);
  const NStepState state{images, returns, starts, counts};
  before.assembler.save(state);
  Play after(5, 4, 0.9);
  after.assembler.restore(state);
  const std::size_t old = before.ring->size();
  for (int t = 30; t < 60; ++t) {
    random_step(before, dice, t);
    after.now = before.now;
    CHECK(before.push() == after.push());
  }
  const std::vector<Row> rows = before.rows();
  CHECK(std::vector<Row>(rows.begin() + static_cast<std::ptrdiff_t>(old), rows.end()) == after.rows());
  counts[2] = 4;
  CHECK_THROWS(Error, after.assembler.restore(state));
  counts[2] = 0;
  starts[1] = -1;
  CHECK_THROWS(Error, after.assembler.restore(state));
  Play other(6, 4, 0.9);
  CHECK_THROWS(Error, other.assembler.restore(state));
  CHECK_THROWS(Error, other.assembler.save(state));
}

TEST(replay_nstep_discards_and_refuses) {
  Play play(2, 3, 0.5);
  play.now = {{.obs = {1, 0},
               .action = 1,
               .reward = 1,
               .next = {2, 0},
               .final = {},
               .terminated = 0,
               .truncated = 0,
               .active = 1},
              {.obs = {1, 1},
               .action = 2,
               .reward = 1,
               .next = {2, 1},
               .final = {},
               .terminated = 0,
               .truncated = 0,
               .active = 1}};
  CHECK(play.push() == 0);
  CHECK(play.push() == 0);
  play.assembler.discard(0);
  CHECK(play.push() == 1);
  CHECK(play.rows()[0].obs[1] == 1.0F && play.rows()[0].reward == 1.75F && play.rows()[0].discount == 0.125F);
  play.now[1].reward = NAN;
  CHECK_THROWS(Error, play.push());
  play.now[1].active = 0;
  CHECK(play.push() == 0);  // a stream that takes no part may say anything
  play.now[1] = play.now[0];
  CHECK(play.push() == 2);  // nothing was taken in from the push that threw
  CHECK_THROWS(Error, play.assembler.discard(2));
  const auto ring = play.ring;
  CHECK_THROWS(Error, NStepAssembler(ring, kRoles, 0, 3, 0.9));
  CHECK_THROWS(Error, NStepAssembler(ring, kRoles, 1, 0, 0.9));
  CHECK_THROWS(Error, NStepAssembler(ring, kRoles, 1, 3, 1.1));
  CHECK_THROWS(Error, NStepAssembler(ring, kRoles, 1, 3, NAN));
  CHECK_THROWS(Error, NStepAssembler(ring, {NStepRole::first}, 1, 3, 0.9));
  CHECK_THROWS(Error, NStepAssembler(ring, std::vector<NStepRole>(5, NStepRole::first), 1, 3, 0.9));
}
