#include "headrace/process.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace headrace {
namespace {

struct ProcStat {
  bool readable = false;
  char state = '?';
  long threads = 0;
  std::uint64_t start_ticks = 0;
};

// Fields 3 (state), 20 (num_threads) and 22 (starttime) of proc(5) stat; the name in field 2 may hold spaces and ')'.
ProcStat read_stat(int pid) {
  ProcStat found;
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return found;
  std::array<char, 1024> text{};
  const std::size_t size = std::fread(text.data(), 1, text.size() - 1, file);
  (void)std::fclose(file);
  text[size] = '\0';
  const char* cursor = std::strrchr(text.data(), ')');
  if (cursor == nullptr || cursor[1] != ' ') return found;
  cursor += 2;
  found.state = *cursor;
  for (int field = 3; field < 22; ++field) {
    if (field == 20) found.threads = std::strtol(cursor, nullptr, 10);
    cursor = std::strchr(cursor, ' ');
    if (cursor == nullptr) return found;
    ++cursor;
  }
  found.start_ticks = std::strtoull(cursor, nullptr, 10);
  found.readable = true;
  return found;
}

constexpr unsigned kPidBits = 22;

// A cache of what the kernel knows, not state: any thread may fill it, a forked child empties it.
std::atomic<ProcessId> cached_id{0};

ProcessId probe_this_process() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { cached_id.store(0, std::memory_order_relaxed); });
  (void)registered;
  const int pid = static_cast<int>(getpid());
  const ProcessId id = (read_stat(pid).start_ticks << kPidBits) | static_cast<ProcessId>(pid);
  cached_id.store(id, std::memory_order_relaxed);
  return id;
}

}  // namespace

ProcessId this_process() {
  const ProcessId id = cached_id.load(std::memory_order_relaxed);
  return id != 0 ? id : probe_this_process();
}

bool process_alive(ProcessId id) {
  if (id == 0) return false;
  if (id == this_process()) return true;
  const int pid = process_pid(id);
  if (kill(pid, 0) != 0 && errno == ESRCH) return false;
  const ProcStat stat = read_stat(pid);
  if (!stat.readable) return !(kill(pid, 0) != 0 && errno == ESRCH);  // hidden or no /proc: trust kill()
  // A leader that called pthread_exit is a zombie while its other threads run on.
  if ((stat.state == 'Z' || stat.state == 'X') && stat.threads <= 1) return false;
  const std::uint64_t start_ticks = id >> kPidBits;
  return start_ticks == 0 || start_ticks == stat.start_ticks;
}

std::uint64_t pid_namespace() {
  struct stat info{};
  return stat("/proc/self/ns/pid", &info) == 0 ? static_cast<std::uint64_t>(info.st_ino) : 0;
}

}  // namespace headrace
