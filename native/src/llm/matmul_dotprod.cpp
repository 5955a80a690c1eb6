#include "matmul_isas.hpp"

namespace headrace::llm {

HEADRACE_MATMUL(matmul_dotprod) {
  matmul_scalar(weights, first_strip, last_strip, x, first_row, n_rows, out, stride, store, scratch);
}

}  // namespace headrace::llm
