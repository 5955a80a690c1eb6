#include "matmul_ymm.hpp"

namespace headrace::llm {

HEADRACE_MATMUL(matmul_avx2) {
  const Call call{&weights, &x, first_strip, last_strip, first_row, n_rows, out, stride, store, scratch};
  with_format(weights.format, [&]<Format F>() { multiply<F>(call); });
}

}  // namespace headrace::llm
