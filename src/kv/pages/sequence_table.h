// Page tables: which pages hold which tokens of which sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/cache.h"
#include "kv/layout.h"
#include "kv/pages/page_pool.h"

namespace litecache::kv {

// A sequence has `lists` lists of pages, one for every (layer, KV head) of the table; all lists
// have the same length and grow together. Sequences may share pages (Fork); a shared page is copied
// before it is written. Tables whose Create and Fork are called in the same order give out the same
// ids. Not thread-safe.
class SequenceTable {
 public:
  // The pool must outlive the table.
  SequenceTable(const TableShape& shape, PagePool& pool);
  ~SequenceTable();
  SequenceTable(const SequenceTable&) = delete;
  SequenceTable& operator=(const SequenceTable&) = delete;

  // Adds an empty sequence; ids are never reused.
  SequenceId Create();
  // Adds a sequence with the rows of `parent`, sharing its pages; takes no page yet.
  SequenceId Fork(SequenceId parent) { return ForkPrefix(parent, Length(parent)); }
  // The same with the parent's first `tokens` rows only.
  SequenceId ForkPrefix(SequenceId parent, int64_t tokens);
  void Release(SequenceId id);
  // Takes back the rows from `tokens` on, at most Length(id), and the pages that only they used.
  void Truncate(SequenceId id, int64_t tokens);

  // Replaces the pages of a block by others, one for each list; takes over a reference to each.
  void ReplaceBlock(SequenceId id, int64_t block, std::span<const PageId> pages);

  int64_t Length(SequenceId id) const { return Get(id).length; }
  int64_t size() const { return static_cast<int64_t>(sequences_.size()); }
  int64_t lists() const { return shape_.lists; }

  struct Growth {
    SequenceId id = 0;
    int64_t rows = 0;   // >= 1, or >= 0 with `from`
    int64_t from = -1;  // rows [from, Length) are rewritten, too; -1: none
  };
  // Makes rows [Length, Length + rows), and those from `from` on, of each given sequence (at most
  // once each) writable: takes pages, and copies pages that other sequences share. Throws
  // CapacityError, with nothing changed, if the pool has too few pages. Commit() changes the
  // lengths once the rows are written. Growing again without Commit (after a failed step) takes
  // nothing twice.
  void Grow(std::span<const Growth> growths);
  // Number of pages that Grow() would take, so that a cache with several tables can reserve first.
  int64_t PagesNeeded(std::span<const Growth> growths);
  void Commit(SequenceId id, int64_t rows);

  // Page i of list `list` is Lists(id)[list][i], i < Blocks(id); valid until the sequence grows or
  // is released.
  std::byte* const* const* Lists(SequenceId id) const { return Get(id).heads.data(); }
  int64_t Blocks(SequenceId id) const { return Get(id).blocks; }
  // How often pages of the lists were added or replaced. Copies of the lists compare this number
  // instead of every page; in most steps it is unchanged.
  int64_t Changes(SequenceId id) const { return Get(id).changes; }
  // The first block that changed since Changes() was `changes`; Blocks(id) if none did.
  int64_t FirstChanged(SequenceId id, int64_t changes) const;
  // How many pages of list `list` are adjacent in memory, from block `block` on, up to `most`.
  int64_t Run(SequenceId id, int64_t list, int64_t block, int64_t most) const;

  // Number of pages these sequences hold; shared pages count once.
  int64_t PagesHeld(std::span<const SequenceId> ids) const;
  // Bytes of `tokens` tokens in all lists; unit.tokens divides tokens.
  uint64_t BytesOf(int64_t tokens, const TableUnit& unit) const {
    return static_cast<uint64_t>(shape_.lists * (tokens / unit.tokens)) * unit.bytes;
  }
  // Copy tokens [begin, begin + tokens), list after list, from the pages to `out`, and from `in` to
  // the pages, which must be writable. unit.tokens divides begin, tokens and a page's tokens.
  void Export(SequenceId id, int64_t begin, int64_t tokens, const TableUnit& unit,
              std::byte* out) const;
  void Import(SequenceId id, int64_t begin, int64_t tokens, const TableUnit& unit,
              const std::byte* in);

 private:
  struct Sequence {
    int64_t length = 0;    // committed tokens
    int64_t blocks = 0;    // pages in every list
    int64_t capacity = 0;  // capacity of every list
    // [lists][capacity]
    std::vector<std::byte*> pages;
    std::vector<PageId> ids;
    std::vector<std::byte* const*> heads;  // [lists]: each list's part of `pages`
    int64_t changes = 0;
    // [blocks]: value of `changes` when the block's pages changed last.
    std::vector<int64_t> changed;
  };

  const Sequence& Get(SequenceId id) const;
  Sequence& Get(SequenceId id) {
    return const_cast<Sequence&>(static_cast<const SequenceTable*>(this)->Get(id));
  }
  // The existing blocks that will be written to: [first, second).
  std::pair<int64_t, int64_t> Rewritten(const Sequence& sequence, const Growth& growth) const;
  void EnsureCapacity(Sequence* sequence, int64_t blocks);
  void CopyBlock(Sequence* sequence, int64_t block);
  // Calls body(first byte in a page, bytes) for the runs of bytes that hold the tokens.
  template <class Body>
  void ForEachRun(SequenceId id, int64_t begin, int64_t tokens, const TableUnit& unit,
                  const Body& body) const;

  TableShape shape_;
  PagePool& pool_;
  SequenceId next_ = 1;
  std::unordered_map<SequenceId, Sequence> sequences_;
  std::vector<PageId> shared_;  // scratch of PagesNeeded
};

}  // namespace litecache::kv
