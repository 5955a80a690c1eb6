#include <sys/wait.h>
#include <unistd.h>

#include "check.hpp"
#include "headrace/process.hpp"

TEST(process_alive_knows_itself_the_dead_and_the_reused) {
  const auto me = headrace::this_process();
  CHECK(headrace::process_pid(me) == getpid());
  CHECK(headrace::process_alive(me));
  CHECK(!headrace::process_alive(0));
  CHECK(!headrace::process_alive(me + (headrace::ProcessId{1} << 22U)));  // our pid, started at another time
}

TEST(process_child_has_its_own_id_and_dies_as_a_zombie) {
  (void)headrace::this_process();  // fill the cache that the child must not inherit
  int to_parent[2];
  int to_child[2];
  CHECK(pipe(to_parent) == 0 && pipe(to_child) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto mine = headrace::this_process();
    char go = 0;
    if (write(to_parent[1], &mine, sizeof(mine)) < 0 || read(to_child[0], &go, 1) < 0) _exit(1);
    _exit(0);
  }
  headrace::ProcessId id = 0;
  CHECK(read(to_parent[0], &id, sizeof(id)) == static_cast<ssize_t>(sizeof(id)));
  CHECK(headrace::process_pid(id) == child);
  CHECK(headrace::process_alive(id));
  CHECK(write(to_child[1], "x", 1) == 1);
  siginfo_t info{};
  CHECK(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
  CHECK(!headrace::process_alive(id));  // still a zombie
  CHECK(waitpid(child, nullptr, 0) == child);
  CHECK(!headrace::process_alive(id));
  for (const int fd : {to_parent[0], to_parent[1], to_child[0], to_child[1]}) close(fd);
}
