#include "matmul_ymm.hpp"

namespace headrace::llm {

HEADRACE_MATMUL(matmul_avx2vnni) {
  const Call call{&weights, &x, first_strip, first_row, n_rows, out, stride, store, scratch};
  with_format(weights.format, [&]<Format F>() { multiply<F>(call, last_strip); });
}

}  // namespace headrace::llm
