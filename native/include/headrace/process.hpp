// Who a process is, in one word that outlives it: pid and start time. A reused pid has another start time, so a word
// found in shared memory tells whether its writer is still there.
#pragma once

#include <cstdint>

namespace headrace {

/// pid in the low 22 bits (the kernel's limit), start time in clock ticks since boot above. 0 is nobody.
using ProcessId = std::uint64_t;

/// This process. Cheap enough for every operation: cached, and renewed in a forked child.
ProcessId this_process();

/// False once the process has ended, is a zombie, or its pid belongs to somebody else. Reads /proc; microseconds.
bool process_alive(ProcessId id);

constexpr int process_pid(ProcessId id) {
  return static_cast<int>(id & ((1U << 22U) - 1U));
}

/// Inode of the pid namespace, 0 where /proc is absent. Ids from different namespaces cannot be compared.
std::uint64_t pid_namespace();

}  // namespace headrace
