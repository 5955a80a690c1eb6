#include "matmul_q.hpp"

namespace headrace::llm {

HEADRACE_MATMUL(matmul_i8mm) {
  multiply({&weights, &x, first_strip, last_strip, first_row, n_rows, out, stride, store, scratch});
}

}  // namespace headrace::llm
