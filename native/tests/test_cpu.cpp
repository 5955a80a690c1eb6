#include <cstdlib>

#include "check.hpp"
#include "headrace/cpu.hpp"
#include "headrace/error.hpp"

using headrace::Error;
using headrace::ErrorKind;
using headrace::Isa;

TEST(cpu_scalar_is_always_supported_and_named) {
  const auto isas = headrace::supported_isas();
  CHECK(isas.front() == Isa::scalar);
  for (const Isa isa : isas) CHECK(headrace::choose_isa(headrace::isa_name(isa)) == isa);
  CHECK(headrace::choose_isa("") == isas.back());
}

TEST(cpu_features_agree_with_the_isas) {
  const auto& cpu = headrace::features();
  for (const Isa isa : headrace::supported_isas()) {
    if (isa == Isa::avx512vnni) CHECK(cpu.avx512f && cpu.avx512vnni && cpu.avx2);
    if (isa == Isa::amx) CHECK(cpu.amx_tile && headrace::request_amx());
  }
#if defined(__x86_64__)
  __builtin_cpu_init();
  CHECK(cpu.avx2 == (__builtin_cpu_supports("avx2") != 0));
  CHECK(cpu.fma == (__builtin_cpu_supports("fma") != 0));
  CHECK(cpu.avx512f == (__builtin_cpu_supports("avx512f") != 0));
  CHECK(cpu.avx512vnni == (__builtin_cpu_supports("avx512vnni") != 0));
  CHECK(cpu.avx512bf16 == (__builtin_cpu_supports("avx512bf16") != 0));
#endif
}

TEST(cpu_unknown_or_unsupported_override_is_a_config_error) {
  CHECK_THROWS(Error, headrace::choose_isa("mmx"));
#if defined(__x86_64__)
  CHECK_THROWS(Error, headrace::choose_isa("neon"));
#else
  CHECK_THROWS(Error, headrace::choose_isa("avx2"));
#endif
  try {
    headrace::choose_isa("mmx");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::config_error);
    CHECK(std::strstr(error.what(), "expected one of: scalar") != nullptr);
  }
}

TEST(cpu_environment_overrides) {
  setenv("HEADRACE_ISA", "scalar", 1);
  CHECK(headrace::best_isa() == Isa::scalar);
  unsetenv("HEADRACE_ISA");
  CHECK(headrace::best_isa() == headrace::supported_isas().back());
}
