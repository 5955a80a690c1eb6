// The pages that hold keys and values of all sequences, for all layers. Who owns which page is decided elsewhere
// (block tables); attention.hpp reads and writes them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::llm {

enum class KvDtype { f16, int8 };  // int8: symmetric codes with one float scale per token and head, for k and v each

struct KvShape {
  std::size_t n_pages = 0;
  std::size_t n_layers = 0;
  std::size_t n_kv_heads = 0;
  std::size_t head_dim = 0;  // a multiple of 8; multiples of 16 waste nothing
  KvDtype dtype = KvDtype::f16;
};

/// Anonymous memory in huge pages where the system grants them; a page costs memory once it is written to.
///
/// Layout: [page][layer][kv head][K [head_dim][16 tokens] | V [16 tokens][padded_dim] | int8: k scales [16], v scales
/// [16]]. K is transposed so that 16 positions of one dimension fill a vector; V is not, so that 16 dimensions of one
/// position do.
class KvPool {
 public:
  static constexpr std::size_t kPageTokens = 16;

  /// Throws invalid_input for a shape with a zero, a head_dim that is no multiple of 8, or more bytes than can be
  /// addressed; overloaded if the system refuses the address space.
  explicit KvPool(const KvShape& shape);
  ~KvPool();
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;

  [[nodiscard]] const KvShape& shape() const noexcept { return shape_; }
  [[nodiscard]] std::size_t n_pages() const noexcept { return shape_.n_pages; }
  [[nodiscard]] std::size_t padded_dim() const noexcept { return padded_dim_; }  // head_dim rounded up to 16
  [[nodiscard]] std::size_t page_bytes() const noexcept { return page_bytes_; }

  /// Copy what `source` holds for all layers into `target`. Throws invalid_input for a page that does not exist.
  void copy_page(std::size_t source, std::size_t target);

  /// Keys of a head within a page: f16 or int8 [head_dim][16]. Unchecked, as the next three.
  [[nodiscard]] std::byte* keys(std::size_t page, std::size_t layer, std::size_t kv_head) const noexcept {
    return data_ + page * page_bytes_ + (layer * shape_.n_kv_heads + kv_head) * head_bytes_;
  }
  [[nodiscard]] std::size_t values_offset() const noexcept { return values_offset_; }  // bytes from keys to values
  [[nodiscard]] std::size_t scales_offset() const noexcept { return scales_offset_; }  // bytes from keys to scales
  [[nodiscard]] std::size_t head_bytes() const noexcept { return head_bytes_; }        // K, V, scales; times 64

 private:
  KvShape shape_;
  std::size_t padded_dim_ = 0;
  std::size_t values_offset_ = 0;
  std::size_t scales_offset_ = 0;
  std::size_t head_bytes_ = 0;
  std::size_t page_bytes_ = 0;
  std::size_t mapped_bytes_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace headrace::llm
