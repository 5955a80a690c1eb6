#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "check.hpp"
#include "headrace/error.hpp"
#include "headrace/shm.hpp"

using headrace::Error;
using headrace::SharedSegment;

static std::string unique_name(const char* what) {
  return std::string("ctest-") + what + "-" + std::to_string(getpid());
}

TEST(shm_two_mappings_see_the_same_bytes) {
  const auto name = unique_name("bytes");
  auto mine = SharedSegment::create(name, 4096);
  const auto other = SharedSegment::attach(name);
  CHECK(mine.owner() && !other.owner());
  CHECK(mine.size() == 4096 && other.size() == 4096);
  CHECK(reinterpret_cast<std::uintptr_t>(mine.data()) % 64 == 0);
  mine.data()[4095] = std::byte{42};
  CHECK(other.data()[4095] == std::byte{42});
  CHECK_THROWS(Error, SharedSegment::create(name, 4096));
  mine.unlink();
  CHECK_THROWS(Error, SharedSegment::attach(name));
  CHECK(other.data()[4095] == std::byte{42});  // the mapping outlives the name
}

TEST(shm_bad_names_and_sizes_are_refused) {
  for (const char* name : {"", "a/b", "..//x", "a b"}) CHECK_THROWS(Error, SharedSegment::create(name, 64));
  CHECK_THROWS(Error, SharedSegment::create("x", 0));
  CHECK_THROWS(Error, SharedSegment::attach("ctest-that-is-not-there"));
}

TEST(shm_foreign_memory_is_refused) {
  const auto name = unique_name("foreign");
  const int fd = shm_open(("/headrace-" + name).c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  CHECK(ftruncate(fd, 4096) == 0);
  CHECK_THROWS(Error, SharedSegment::attach(name));
  close(fd);
  shm_unlink(("/headrace-" + name).c_str());
}

static void leave_behind(const std::string& name) {
  const pid_t child = fork();
  if (child == 0) {
    auto* segment = new SharedSegment(SharedSegment::create(name, 128));
    segment->data()[0] = std::byte{7};
    _exit(0);  // no destructor: as if killed
  }
  CHECK(waitpid(child, nullptr, 0) == child);
}

TEST(shm_a_dead_owners_segment_is_swept_or_replaced) {
  const auto name = unique_name("dead");
  leave_behind(name);
  {
    const auto orphan = SharedSegment::attach(name);
    CHECK(orphan.data()[0] == std::byte{7});
  }
  const auto fresh = SharedSegment::create(name, 128);
  CHECK(fresh.data()[0] == std::byte{0});
  const auto swept_name = unique_name("swept");
  leave_behind(swept_name);
  const auto swept = SharedSegment::sweep();
  CHECK(std::find(swept.begin(), swept.end(), swept_name) != swept.end());
  CHECK(std::find(swept.begin(), swept.end(), name) == swept.end());
  CHECK_THROWS(Error, SharedSegment::attach(swept_name));
}

TEST(shm_a_forked_child_does_not_unlink) {
  const auto name = unique_name("forked");
  auto* segment = new SharedSegment(SharedSegment::create(name, 64));
  const pid_t child = fork();
  if (child == 0) {
    delete segment;
    _exit(0);
  }
  CHECK(waitpid(child, nullptr, 0) == child);
  CHECK(SharedSegment::attach(name).size() == 64);
  delete segment;
  CHECK_THROWS(Error, SharedSegment::attach(name));
}
