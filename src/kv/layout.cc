#include "kv/layout.h"

#include <bit>

#include "base/error.h"

namespace litecache::kv {
namespace {

constexpr int64_t kPageBytes = 64 * 1024;
constexpr int64_t kMinPageTokens = 16;

// Far above any model, and low enough that products of dimensions fit in 63 bits.
constexpr int64_t kMaxDimension = 1 << 20;

}  // namespace

void CheckLayout(const Layout& layout) {
  const auto check = [](const char* name, int64_t value) {
    if (value < 1 || value > kMaxDimension) {
      throw InvalidArgument("KV layout: {} = {} is not between 1 and {}", name, value,
                            kMaxDimension);
    }
  };
  check("layers", layout.layers);
  check("q_heads", layout.q_heads);
  check("kv_heads", layout.kv_heads);
  check("head_dim", layout.head_dim);
  if (layout.q_heads % layout.kv_heads != 0) {
    throw InvalidArgument("KV layout: {} query heads are not a multiple of {} KV heads",
                          layout.q_heads, layout.kv_heads);
  }
  if (layout.dtype != DType::kBF16 && layout.dtype != DType::kF32) {
    throw InvalidArgument("KV layout: rows are bf16 or f32, not {}", Name(layout.dtype));
  }
}

std::string Describe(const Layout& layout) {
  return fmt::format("{} layers, {}/{} heads of {}, {}", layout.layers, layout.q_heads,
                     layout.kv_heads, layout.head_dim, Name(layout.dtype));
}

int64_t PageTokens(const Layout& layout) {
  const int64_t row_bytes = 2 * layout.head_dim * static_cast<int64_t>(SizeOf(layout.dtype));
  const int64_t tokens = kPageBytes / row_bytes;
  if (tokens <= kMinPageTokens) return kMinPageTokens;
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(tokens)));
}

ops::KvGeometry MakeGeometry(const Layout& layout) {
  return {layout.kv_heads, layout.head_dim, layout.dtype, PageTokens(layout)};
}

PageLayout::PageLayout(const Layout& layout)
    : page_tokens(PageTokens(layout)),
      page_bytes(MakeGeometry(layout).page_bytes()),
      pages_per_block(layout.layers * layout.kv_heads) {}

}  // namespace litecache::kv
