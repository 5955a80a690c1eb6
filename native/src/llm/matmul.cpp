#include "headrace/llm/matmul.hpp"

#include <string>

#include "headrace/error.hpp"
#include "matmul_isas.hpp"

namespace headrace::llm {

Matmul matmul(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return matmul_scalar;
#if defined(__x86_64__)
    case Isa::avx2:
      return matmul_avx2;
    case Isa::avx2vnni:
      return matmul_avx2vnni;
    case Isa::avx512vnni:
      return matmul_avx512;
    case Isa::amx:
      request_amx();
      return matmul_amx;
#elif defined(__aarch64__)
    case Isa::neon:
      return matmul_neon;
    case Isa::dotprod:
      return matmul_dotprod;
    case Isa::i8mm:
      return matmul_i8mm;
#endif
    default:
      throw Error(ErrorKind::config_error, "this build has no matrix kernel for " + std::string(isa_name(isa)));
  }
}

}  // namespace headrace::llm
