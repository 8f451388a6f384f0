// Page sizes and sequence costs, computed from a model's KV shapes.
#pragma once

#include <cstdint>
#include <string>

#include "kv/cache.h"
#include "ops/attention/attention.h"

namespace litecache::kv {

// Throws InvalidArgument for impossible shapes: zero or negative, heads that do not divide, a dtype
// other than bf16 and f32.
void CheckLayout(const Layout& layout);

// Text such as "16 layers, 32/8 heads of 64, bf16".
std::string Describe(const Layout& layout);

// Tokens in a page of one (sequence, layer, KV head): the power of two that brings the page closest
// to 64 KiB without exceeding it, at least 16. At 64 KiB a head-by-head pull over the link reaches
// its full rate (docs/internals/architecture.md).
int64_t PageTokens(const Layout& layout);

// The layout as the attention operations take it.
ops::KvGeometry MakeGeometry(const Layout& layout);

// The contents of a table's pages.
struct TableShape {
  int64_t lists = 0;        // page lists per sequence: one per (layer, KV head) of the table
  int64_t page_tokens = 0;  // tokens a page holds
  // A page's bytes per token, in order; 0: tokens are interleaved (retriever metadata), so copies
  // move whole pages.
  uint64_t token_bytes = 0;
  int64_t BlocksFor(int64_t tokens) const { return (tokens + page_tokens - 1) / page_tokens; }
};

// The repeating unit of a page: one token's bytes, or the interleaved bytes of several tokens.
struct TableUnit {
  int64_t tokens = 1;
  uint64_t bytes = 0;
};

// Page sizes of a layout. A block is the pages of page_tokens consecutive tokens over all layers
// and KV heads: policy `full` grows sequences block by block.
struct PageLayout {
  int64_t page_tokens = 0;
  uint64_t page_bytes = 0;
  int64_t pages_per_block = 0;

  explicit PageLayout(const Layout& layout);

  // Shape of a sequence table over all heads, or over `lists` of them.
  TableShape Table(int64_t lists) const {
    return {lists, page_tokens, page_bytes / static_cast<uint64_t>(page_tokens)};
  }
  TableShape Table() const { return Table(pages_per_block); }

  uint64_t block_bytes() const { return page_bytes * static_cast<uint64_t>(pages_per_block); }
  int64_t BlocksFor(int64_t tokens) const { return (tokens + page_tokens - 1) / page_tokens; }
  int64_t PagesFor(int64_t tokens) const { return BlocksFor(tokens) * pages_per_block; }
  uint64_t BytesFor(int64_t tokens) const {
    return static_cast<uint64_t>(BlocksFor(tokens)) * block_bytes();
  }
  // Bytes that a fork made at `shared` tokens adds by the time it has `tokens`: full blocks stay
  // shared; a partial one is copied when it is written to.
  uint64_t ForkBytesFor(int64_t shared, int64_t tokens) const {
    return BytesFor(tokens) - BytesFor(shared - shared % page_tokens);
  }
  // The most tokens one sequence can hold in `budget_bytes`.
  int64_t TokensIn(uint64_t budget_bytes) const {
    return static_cast<int64_t>(budget_bytes / block_bytes()) * page_tokens;
  }
};

}  // namespace litecache::kv
