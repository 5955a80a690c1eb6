// The whole test framework: TEST registers a function, CHECK and CHECK_THROWS count, main prints `N passed, N failed`.
#pragma once

#include <sys/personality.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

inline std::atomic<int> failures{0};

struct Registration {
  Registration(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

inline void verify(bool holds, const char* what, const char* file, int line) {
  if (holds) return;
  ++failures;
  std::printf("%s:%d: failed: %s\n", file, line, what);
}

inline int run(int argc, char** argv) {
#if defined(__SANITIZE_THREAD__)
  // ThreadSanitizer of older compilers cannot map its shadow under high-entropy address randomisation.
  const int current = personality(0xffffffff);
  if ((current & ADDR_NO_RANDOMIZE) == 0 &&
      personality(static_cast<unsigned long>(current | ADDR_NO_RANDOMIZE)) != -1) {
    execv("/proc/self/exe", argv);
  }
#endif
  int passed = 0;
  int failed = 0;
  for (const Test& test : tests()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    const int before = failures;
    try {
      test.body();
    } catch (const std::exception& error) {
      ++failures;
      std::printf("%s: threw: %s\n", test.name, error.what());
    }
    if (failures != before) std::printf("FAILED %s\n", test.name);
    ++(failures == before ? passed : failed);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace check

#define TEST(name)                                                          \
  static void test_##name();                                                \
  static const check::Registration registration_##name(#name, test_##name); \
  static void test_##name()
#define CHECK(condition) check::verify(static_cast<bool>(condition), #condition, __FILE__, __LINE__)
#define CHECK_THROWS(Type, expression)                                        \
  do {                                                                        \
    bool thrown_ = false;                                                     \
    try {                                                                     \
      (void)(expression);                                                     \
    } catch (const Type&) {                                                   \
      thrown_ = true;                                                         \
    }                                                                         \
    check::verify(thrown_, #expression " throws " #Type, __FILE__, __LINE__); \
  } while (false)
