#include "headrace/cpu.hpp"

#include <array>
#include <cstdlib>

#include "headrace/error.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace headrace {
namespace {

#if defined(__x86_64__)
constexpr bool bit(unsigned value, unsigned index) {
  return ((value >> index) & 1U) != 0;
}

unsigned long long saved_state() {
  unsigned low = 0;
  unsigned high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<unsigned long long>(high) << 32U) | low;
}

// Bit numbers: Intel SDM volume 2A, CPUID leaves 1 and 7, and XCR0 in volume 1 chapter 13.
CpuFeatures probe() {
  CpuFeatures found;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || !bit(ecx, 27)) return found;  // no OSXSAVE: no vector state saved
  const unsigned long long xcr0 = saved_state();
  const bool ymm = (xcr0 & 0x6U) == 0x6U;
  const bool zmm = ymm && (xcr0 & 0xE0U) == 0xE0U;
  const bool tile = (xcr0 & 0x60000U) == 0x60000U;
  found.fma = ymm && bit(ecx, 12);
  found.f16c = ymm && bit(ecx, 29);
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return found;
  const unsigned last_subleaf = eax;
  found.avx2 = ymm && bit(ebx, 5);
  found.avx512f = zmm && bit(ebx, 16);
  found.avx512dq = zmm && bit(ebx, 17);
  found.avx512bw = zmm && bit(ebx, 30);
  found.avx512vl = zmm && bit(ebx, 31);
  found.avx512vnni = zmm && bit(ecx, 11);
  found.avx512fp16 = zmm && bit(edx, 23);
  found.amx_bf16 = tile && bit(edx, 22);
  found.amx_tile = tile && bit(edx, 24);
  found.amx_int8 = tile && bit(edx, 25);
  if (last_subleaf >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) {
    found.avx_vnni = ymm && bit(eax, 4);
    found.avx512bf16 = zmm && bit(eax, 5);
  }
  return found;
}
#elif defined(__aarch64__)
// Bit numbers: Linux uapi asm/hwcap.h; spelled out because old headers lack the newer names.
CpuFeatures probe() {
  const unsigned long hwcap = getauxval(AT_HWCAP);
  const unsigned long hwcap2 = getauxval(AT_HWCAP2);
  CpuFeatures found;
  found.neon = (hwcap & (1UL << 1U)) != 0;
  found.dotprod = (hwcap & (1UL << 20U)) != 0;
  found.sve = (hwcap & (1UL << 22U)) != 0;
  found.i8mm = (hwcap2 & (1UL << 13U)) != 0;
  found.bf16 = (hwcap2 & (1UL << 14U)) != 0;
  return found;
}
#else
CpuFeatures probe() {
  return {};
}
#endif

bool ask_for_tiles() {
#if defined(__x86_64__)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  const CpuFeatures& cpu = features();
  return cpu.amx_tile && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

constexpr std::array kAllIsas = {Isa::scalar, Isa::avx2, Isa::avx2vnni, Isa::avx512vnni,
                                 Isa::amx,    Isa::neon, Isa::dotprod,  Isa::i8mm};

bool supported(Isa isa) {
  const CpuFeatures& cpu = features();
  const bool avx2 = cpu.avx2 && cpu.fma && cpu.f16c;
  const bool avx512 = avx2 && cpu.avx512f && cpu.avx512dq && cpu.avx512bw && cpu.avx512vl && cpu.avx512vnni;
  switch (isa) {
    case Isa::scalar:
      return true;
    case Isa::avx2:
      return avx2;
    case Isa::avx2vnni:
      return avx2 && cpu.avx_vnni;
    case Isa::avx512vnni:
      return avx512;
    case Isa::amx:
      return avx512 && cpu.avx512bf16 && cpu.amx_int8 && cpu.amx_bf16 && request_amx();
    case Isa::neon:
      return cpu.neon;
    case Isa::dotprod:
      return cpu.neon && cpu.dotprod;
    case Isa::i8mm:
      return cpu.neon && cpu.dotprod && cpu.i8mm;
  }
  return false;
}

}  // namespace

const CpuFeatures& features() {
  static const CpuFeatures found = probe();
  return found;
}

bool request_amx() {
  static const bool granted = ask_for_tiles();
  return granted;
}

std::vector<std::string> cpu_features() {
  const CpuFeatures& cpu = features();
  const std::array<std::pair<bool, const char*>, 19> named = {{{cpu.avx2, "avx2"},
                                                               {cpu.fma, "fma"},
                                                               {cpu.f16c, "f16c"},
                                                               {cpu.avx512f, "avx512f"},
                                                               {cpu.avx512dq, "avx512dq"},
                                                               {cpu.avx512bw, "avx512bw"},
                                                               {cpu.avx512vl, "avx512vl"},
                                                               {cpu.avx512vnni, "avx512vnni"},
                                                               {cpu.avx512bf16, "avx512bf16"},
                                                               {cpu.avx512fp16, "avx512fp16"},
                                                               {cpu.avx_vnni, "avx-vnni"},
                                                               {cpu.amx_tile, "amx-tile"},
                                                               {cpu.amx_int8, "amx-int8"},
                                                               {cpu.amx_bf16, "amx-bf16"},
                                                               {cpu.neon, "neon"},
                                                               {cpu.dotprod, "dotprod"},
                                                               {cpu.i8mm, "i8mm"},
                                                               {cpu.sve, "sve"},
                                                               {cpu.bf16, "bf16"}}};
  std::vector<std::string> names;
  for (const auto& [present, name] : named) {
    if (present) names.emplace_back(name);
  }
  return names;
}

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return "scalar";
    case Isa::avx2:
      return "avx2";
    case Isa::avx2vnni:
      return "avx2vnni";
    case Isa::avx512vnni:
      return "avx512vnni";
    case Isa::amx:
      return "amx";
    case Isa::neon:
      return "neon";
    case Isa::dotprod:
      return "dotprod";
    case Isa::i8mm:
      return "i8mm";
  }
  return "unknown";
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> found;
  for (const Isa isa : kAllIsas) {
    if (supported(isa)) found.push_back(isa);
  }
  return found;
}

Isa choose_isa(std::string_view wanted) {
  const std::vector<Isa> usable = supported_isas();
  if (wanted.empty()) return usable.back();
  std::string choices;
  for (const Isa isa : usable) {
    if (isa_name(isa) == wanted) return isa;
    choices += choices.empty() ? "" : ", ";
    choices += isa_name(isa);
  }
  bool known = false;
  for (const Isa isa : kAllIsas) known = known || isa_name(isa) == wanted;
  const std::string what = known ? "is not supported by this processor" : "is no known instruction set";
  throw Error(ErrorKind::config_error,
              "isa or HEADRACE_ISA: '" + std::string(wanted) + "' " + what + "; expected one of: " + choices);
}

Isa best_isa() {
  const char* wanted = std::getenv("HEADRACE_ISA");
  return choose_isa(wanted == nullptr ? "" : wanted);
}

}  // namespace headrace
