#include "headrace/llm/kv.hpp"

#include <sys/mman.h>

#include <cstring>
#include <string>

#include "bytes.hpp"
#include "headrace/error.hpp"

namespace headrace::llm {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20U;
constexpr std::size_t kMostBytes = std::size_t{1} << 46U;  // half of what 48-bit addresses leave a process

/// a * b, or an error when a pool of that many bytes cannot be.
std::size_t times(std::size_t a, std::size_t b) {
  if (b != 0 && a > kMostBytes / b) {
    throw Error(ErrorKind::invalid_input, "pages for keys and values: more bytes asked for than can be addressed");
  }
  return a * b;
}

}  // namespace

KvPool::KvPool(const KvShape& shape) : shape_(shape) {
  const auto check = [](const char* name, std::size_t value) {
    if (value == 0 || value > 0x7FFFFFFFU) {
      throw Error(ErrorKind::invalid_input,
                  std::string(name) + ": expected 1..2147483647, got " + std::to_string(value));
    }
  };
  check("n_pages", shape.n_pages);
  check("n_layers", shape.n_layers);
  check("n_kv_heads", shape.n_kv_heads);
  check("head_dim", shape.head_dim);
  if (shape.head_dim % 8 != 0) {
    throw Error(ErrorKind::invalid_input, "head_dim: expected a multiple of 8, got " + std::to_string(shape.head_dim));
  }
  padded_dim_ = round_up(shape.head_dim, 16);
  const std::size_t element = shape.dtype == KvDtype::f16 ? 2 : 1;
  values_offset_ = shape.head_dim * kPageTokens * element;
  scales_offset_ = values_offset_ + padded_dim_ * kPageTokens * element;
  const std::size_t scales = shape.dtype == KvDtype::int8 ? 2 * kPageTokens * sizeof(float) : 0;
  head_bytes_ = round_up(scales_offset_ + scales, kLine);
  page_bytes_ = times(times(head_bytes_, shape.n_kv_heads), shape.n_layers);
  mapped_bytes_ = round_up(times(page_bytes_, shape.n_pages), kHugePage);
  void* memory =
      mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(ErrorKind::overloaded,
                "the system refuses " + std::to_string(mapped_bytes_) + " bytes for the pages of keys and values");
  }
  (void)madvise(memory, mapped_bytes_, MADV_HUGEPAGE);  // without huge pages it is as good, only slower
  data_ = static_cast<std::byte*>(memory);
}

KvPool::~KvPool() {
  munmap(data_, mapped_bytes_);
}

void KvPool::copy_page(std::size_t source, std::size_t target) {
  if (source >= shape_.n_pages || target >= shape_.n_pages) {
    throw Error(ErrorKind::invalid_input, "copy page " + std::to_string(source) + " to " + std::to_string(target) +
                                              ": there are " + std::to_string(shape_.n_pages) + " pages");
  }
  if (source != target) std::memcpy(data_ + target * page_bytes_, data_ + source * page_bytes_, page_bytes_);
}

}  // namespace headrace::llm
