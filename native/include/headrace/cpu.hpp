// What the processor can do, asked once at run time; kernels are chosen from this and never from compile flags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// Instruction sets a kernel can be written for, worst first within each architecture.
/// A kernel for `avx2` may use AVX2+FMA+F16C; `avx512vnni` adds AVX-512 F/BW/DQ/VL/VNNI; `amx` adds AMX tile/INT8/BF16.
/// `neon` is the AArch64 baseline; `dotprod` and `i8mm` add those extensions.
enum class Isa { scalar, avx2, avx2vnni, avx512vnni, amx, neon, dotprod, i8mm };

/// Every feature the kernels ask about. On x86 a bit is set only if the operating system also saves the registers.
struct CpuFeatures {
  bool avx2 = false, fma = false, f16c = false;
  bool avx512f = false, avx512dq = false, avx512bw = false, avx512vl = false;
  bool avx512vnni = false, avx512bf16 = false, avx512fp16 = false, avx_vnni = false;
  bool amx_tile = false, amx_int8 = false, amx_bf16 = false;
  bool neon = false, dotprod = false, i8mm = false, sve = false, bf16 = false;
};

/// The features of this processor (probed on the first call).
const CpuFeatures& features();

/// Names of the features present, e.g. "avx2", "avx512vnni", "amx-int8".
std::vector<std::string> cpu_features();

/// Ask the kernel for the AMX tile registers, once per process. True when tiles may be used.
bool request_amx();

/// Instruction sets this processor and kernel can run, worst first; `scalar` is always there.
std::vector<Isa> supported_isas();

std::string_view isa_name(Isa isa);

/// The set named `wanted` ("" = the best supported one). Throws config_error for an unknown or unsupported name.
Isa choose_isa(std::string_view wanted);

/// choose_isa() of the environment variable HEADRACE_ISA.
Isa best_isa();

/// Tell the core that this thread is spinning (`pause`/`yield`).
inline void cpu_relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

}  // namespace headrace
