#include "headrace/cpu.hpp"

namespace headrace {

std::vector<std::string> cpu_features() {
  std::vector<std::string> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) found.emplace_back("avx2");
  if (__builtin_cpu_supports("avx512f")) found.emplace_back("avx512f");
  if (__builtin_cpu_supports("avx512vnni")) found.emplace_back("avx512vnni");
#endif
  return found;
}

}  // namespace headrace
