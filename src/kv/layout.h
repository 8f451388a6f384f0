// From a model's KV shapes to pages: how many tokens a page holds and what a sequence costs.
#pragma once

#include <cstdint>
#include <string>

#include "kv/cache.h"
#include "ops/attention/attention.h"

namespace litecache::kv {

// Throws InvalidArgument for shapes that cannot be a model's (zero, negative, heads that do not
// divide, a dtype other than bf16 and f32).
void CheckLayout(const Layout& layout);

// "16 layers, 32/8 heads of 64, bf16".
std::string Describe(const Layout& layout);

// Tokens a page of one (sequence, layer, KV head) holds: the power of two that brings the page
// closest to 64 KiB without passing it, at least 16. 64 KiB is where a head-after-head pull over
// the link reaches its full rate (docs/internals/architecture.md).
int64_t PageTokens(const Layout& layout);

// The attention operation's view of the layout.
ops::KvGeometry MakeGeometry(const Layout& layout);

// What a table's pages hold.
struct TableShape {
  int64_t lists = 0;         // lists of pages a sequence has: one a (layer, KV head) of the table
  int64_t page_tokens = 0;   // tokens a page holds
  uint64_t token_bytes = 0;  // a page's bytes a token, in order; 0: a page's tokens are interleaved
                             // (retriever metadata), and a copy copies it whole
  int64_t BlocksFor(int64_t tokens) const { return (tokens + page_tokens - 1) / page_tokens; }
};

// What a page is a run of: one token's bytes, or the interleaved bytes of several tokens.
struct TableUnit {
  int64_t tokens = 1;
  uint64_t bytes = 0;
};

// Page sizes of a layout. A block is the pages of one stretch of page_tokens tokens over all layers
// and KV heads: policy `full` grows sequences block by block.
struct PageLayout {
  int64_t page_tokens = 0;
  uint64_t page_bytes = 0;
  int64_t pages_per_block = 0;

  explicit PageLayout(const Layout& layout);

  // A sequence table over all heads, and one over `lists` of them.
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
  // What a fork made at `shared` tokens adds by the time it has `tokens`: full blocks stay shared
  // for good; a partial one is copied when it is written to.
  uint64_t ForkBytesFor(int64_t shared, int64_t tokens) const {
    return BytesFor(tokens) - BytesFor(shared - shared % page_tokens);
  }
  // The most tokens one sequence can hold in `budget_bytes`.
  int64_t TokensIn(uint64_t budget_bytes) const {
    return static_cast<int64_t>(budget_bytes / block_bytes()) * page_tokens;
  }
};

}  // namespace litecache::kv
