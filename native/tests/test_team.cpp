#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <vector>

#include "check.hpp"
#include "headrace/error.hpp"
#include "headrace/team.hpp"

using headrace::Team;

TEST(team_runs_every_rank_once) {
  for (const std::size_t threads : {1, 2, 5}) {
    Team team(threads);
    CHECK(team.size() == threads);
    for (int run = 0; run < 50; ++run) {
      std::vector<std::atomic<int>> calls(threads);
      team.run([&](std::size_t rank) { calls[rank].fetch_add(1); });
      for (const auto& count : calls) CHECK(count.load() == 1);
    }
  }
}

TEST(team_barrier_parts_the_phases) {
  constexpr std::size_t threads = 3;
  constexpr std::size_t phases = 2000;
  Team team(threads);
  std::array<std::size_t, threads> done{};  // plain: the barriers order it
  std::atomic<int> wrong{0};
  team.run([&](std::size_t rank) {
    for (std::size_t phase = 1; phase <= phases; ++phase) {
      done[rank] = phase;
      team.barrier();
      for (const std::size_t other : done) wrong.fetch_add(other == phase ? 0 : 1);
      team.barrier();
    }
  });
  CHECK(wrong.load() == 0);
}

TEST(team_wakes_those_that_fell_asleep_at_a_barrier) {
  Team team(2);
  std::atomic<int> arrived{0};
  for (int run = 0; run < 3; ++run) {
    team.run([&](std::size_t rank) {
      if (rank == 1) usleep(20'000);  // far longer than anybody spins
      arrived.fetch_add(1);
      team.barrier();
    });
    usleep(5'000);  // the worker sleeps between runs, too
  }
  CHECK(arrived.load() == 6);
}

TEST(team_refuses_sizes_that_cannot_be) {
  CHECK_THROWS(headrace::Error, Team(0));
  CHECK_THROWS(headrace::Error, Team(1025));
}

TEST(team_is_of_no_use_in_a_forked_child) {
  Team team(2);
  const pid_t child = fork();
  if (child == 0) {
    bool refused = false;
    try {
      team.run([](std::size_t) {});
    } catch (const headrace::Error&) {
      refused = true;
    }
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
