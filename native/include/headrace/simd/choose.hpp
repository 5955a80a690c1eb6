// Which of the instruction sets Lanes is written for serves an Isa.
#pragma once

#include <string>

#include "headrace/cpu.hpp"
#include "headrace/error.hpp"

namespace headrace {

/// Of the tables compiled into this build, the one for `isa`. Throws config_error if there is none.
template <class Table>
const Table& for_isa(Isa isa, const Table* scalar, const Table* avx2, const Table* avx512, const Table* neon) {
  const Table* found = nullptr;
  switch (isa) {
    case Isa::scalar:
      found = scalar;
      break;
    case Isa::avx2:
    case Isa::avx2vnni:
      found = avx2;
      break;
    case Isa::avx512vnni:
    case Isa::amx:
      found = avx512;
      break;
    case Isa::neon:
    case Isa::dotprod:
    case Isa::i8mm:
      found = neon;
      break;
  }
  if (found == nullptr) {
    throw Error(ErrorKind::config_error, "this build has no kernels for " + std::string(isa_name(isa)));
  }
  return *found;
}

}  // namespace headrace
