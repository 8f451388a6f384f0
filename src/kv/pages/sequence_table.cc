#include "kv/pages/sequence_table.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/error.h"

namespace litecache::kv {

SequenceTable::SequenceTable(const TableShape& shape, PagePool& pool) : shape_(shape), pool_(pool) {
  LC_CHECK(shape.lists >= 0 && shape.page_tokens >= 1);
  LC_CHECK(shape.token_bytes * static_cast<uint64_t>(shape.page_tokens) <= pool.page_bytes());
}

SequenceTable::~SequenceTable() {
  while (!sequences_.empty()) Release(sequences_.begin()->first);
}

const SequenceTable::Sequence& SequenceTable::Get(SequenceId id) const {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) {
    throw InvalidArgument("KV cache: sequence {} does not exist (released, or never created)", id);
  }
  return found->second;
}

SequenceId SequenceTable::Create() {
  sequences_.emplace(next_, Sequence{});
  return next_++;
}

SequenceId SequenceTable::ForkPrefix(SequenceId parent, int64_t tokens) {
  const Sequence& source = Get(parent);
  LC_CHECK(tokens >= 0 && tokens <= source.length, "{} of {} tokens", tokens, source.length);
  Sequence child;
  // Blocks beyond these rows (of a longer parent or a failed step) are not shared.
  const int64_t blocks = shape_.BlocksFor(tokens);
  EnsureCapacity(&child, blocks);
  child.length = tokens;
  child.blocks = blocks;
  if (blocks > 0) child.changes = 1;
  child.changed.assign(static_cast<size_t>(blocks), 1);
  for (int64_t list = 0; list < shape_.lists; ++list) {
    for (int64_t i = 0; i < blocks; ++i) {
      const auto from = static_cast<size_t>(list * source.capacity + i);
      const auto to = static_cast<size_t>(list * child.capacity + i);
      child.pages[to] = source.pages[from];
      child.ids[to] = source.ids[from];
    }
  }
  sequences_.emplace(next_, std::move(child));
  const Sequence& kept = sequences_.at(next_);
  for (int64_t list = 0; list < shape_.lists; ++list) {
    for (int64_t i = 0; i < blocks; ++i) {
      pool_.AddReference(kept.ids[static_cast<size_t>(list * kept.capacity + i)]);
    }
  }
  return next_++;
}

void SequenceTable::Release(SequenceId id) {
  const Sequence& sequence = Get(id);
  for (int64_t list = 0; list < shape_.lists; ++list) {
    for (int64_t i = 0; i < sequence.blocks; ++i) {
      pool_.DropReference(sequence.ids[static_cast<size_t>(list * sequence.capacity + i)]);
    }
  }
  sequences_.erase(id);
}

void SequenceTable::Truncate(SequenceId id, int64_t tokens) {
  Sequence& sequence = Get(id);
  LC_CHECK(tokens >= 0 && tokens <= sequence.length, "{} of {} tokens", tokens, sequence.length);
  const int64_t blocks = shape_.BlocksFor(tokens);
  for (int64_t list = 0; list < shape_.lists; ++list) {
    for (int64_t i = blocks; i < sequence.blocks; ++i) {
      pool_.DropReference(sequence.ids[static_cast<size_t>(list * sequence.capacity + i)]);
    }
  }
  sequence.length = tokens;
  sequence.blocks = blocks;
  sequence.changed.resize(static_cast<size_t>(blocks));
}

void SequenceTable::ReplaceBlock(SequenceId id, int64_t block, std::span<const PageId> pages) {
  Sequence& sequence = Get(id);
  LC_CHECK(block >= 0 && block < sequence.blocks && std::ssize(pages) == shape_.lists);
  for (int64_t list = 0; list < shape_.lists; ++list) {
    const auto slot = static_cast<size_t>(list * sequence.capacity + block);
    pool_.DropReference(sequence.ids[slot]);
    sequence.ids[slot] = pages[static_cast<size_t>(list)];
    sequence.pages[slot] = pool_.data(sequence.ids[slot]);
  }
  sequence.changed[static_cast<size_t>(block)] = ++sequence.changes;
}

std::pair<int64_t, int64_t> SequenceTable::Rewritten(const Sequence& sequence,
                                                     const Growth& growth) const {
  const int64_t from = growth.from < 0 ? sequence.length : std::min(growth.from, sequence.length);
  return {from / shape_.page_tokens, shape_.BlocksFor(sequence.length)};
}

int64_t SequenceTable::PagesNeeded(std::span<const Growth> growths) {
  int64_t blocks = 0;
  shared_.clear();
  for (const Growth& growth : growths) {
    const Sequence& sequence = Get(growth.id);
    blocks +=
        std::max<int64_t>(shape_.BlocksFor(sequence.length + growth.rows) - sequence.blocks, 0);
    if (shape_.lists == 0) continue;
    const auto [first, end] = Rewritten(sequence, growth);
    for (int64_t block = first; block < end; ++block) {
      // A block's pages are shared together, so checking its first page is enough.
      const PageId page = sequence.ids[static_cast<size_t>(block)];
      if (pool_.references(page) > 1) shared_.push_back(page);
    }
  }
  blocks += CopiesNeeded(pool_, &shared_);
  return blocks * shape_.lists;
}

void SequenceTable::EnsureCapacity(Sequence* sequence, int64_t blocks) {
  if (blocks <= sequence->capacity) return;
  const int64_t capacity = std::max<int64_t>({blocks, 2 * sequence->capacity, 4});
  const auto size = static_cast<size_t>(shape_.lists * capacity);
  std::vector<std::byte*> pages(size);
  std::vector<PageId> ids(size);
  for (int64_t list = 0; list < shape_.lists; ++list) {
    for (int64_t i = 0; i < sequence->blocks; ++i) {
      const auto from = static_cast<size_t>(list * sequence->capacity + i);
      const auto to = static_cast<size_t>(list * capacity + i);
      pages[to] = sequence->pages[from];
      ids[to] = sequence->ids[from];
    }
  }
  sequence->pages = std::move(pages);
  sequence->ids = std::move(ids);
  sequence->capacity = capacity;
  sequence->heads.resize(static_cast<size_t>(shape_.lists));
  for (int64_t list = 0; list < shape_.lists; ++list) {
    sequence->heads[static_cast<size_t>(list)] = sequence->pages.data() + list * capacity;
  }
}

void SequenceTable::CopyBlock(Sequence* sequence, int64_t block) {
  const auto rows = static_cast<uint64_t>(
      std::min(sequence->length - block * shape_.page_tokens, shape_.page_tokens));
  const uint64_t bytes = shape_.token_bytes > 0 ? rows * shape_.token_bytes : pool_.page_bytes();
  for (int64_t list = 0; list < shape_.lists; ++list) {
    const auto slot = static_cast<size_t>(list * sequence->capacity + block);
    const PageId shared = sequence->ids[slot];
    const PageId own = pool_.Take();
    pool_.CopyPage(own, shared, bytes);
    pool_.DropReference(shared);
    sequence->ids[slot] = own;
    sequence->pages[slot] = pool_.data(own);
  }
}

void SequenceTable::Grow(std::span<const Growth> growths) {
  // All calls that can throw come first.
  for (const Growth& growth : growths) {
    LC_CHECK(growth.rows >= (growth.from < 0 ? 1 : 0));
    Get(growth.id);
  }
  pool_.Reserve(PagesNeeded(growths));
  for (const Growth& growth : growths) {
    Sequence& sequence = Get(growth.id);
    EnsureCapacity(&sequence, shape_.BlocksFor(sequence.length + growth.rows));
  }

  for (const Growth& growth : growths) {
    Sequence& sequence = Get(growth.id);
    const int64_t change = sequence.changes + 1;
    const auto [first, end] = Rewritten(sequence, growth);
    for (int64_t block = first; shape_.lists > 0 && block < end; ++block) {
      if (pool_.references(sequence.ids[static_cast<size_t>(block)]) > 1) {
        CopyBlock(&sequence, block);
        sequence.changed[static_cast<size_t>(block)] = sequence.changes = change;
      }
    }
    const int64_t blocks = shape_.BlocksFor(sequence.length + growth.rows);
    // A list's new pages are adjacent: reading one list out of gigabytes then needs few of the
    // address translations that all of a GPU's reads share (lab/notes/gpu/litecache.md).
    for (int64_t list = 0; list < shape_.lists; ++list) {
      for (int64_t block = sequence.blocks; block < blocks; ++block) {
        const auto slot = static_cast<size_t>(list * sequence.capacity + block);
        sequence.ids[slot] = pool_.Take();
        sequence.pages[slot] = pool_.data(sequence.ids[slot]);
      }
    }
    if (blocks <= sequence.blocks) continue;
    sequence.blocks = blocks;
    sequence.changes = change;
    sequence.changed.resize(static_cast<size_t>(blocks), change);
  }
}

int64_t SequenceTable::FirstChanged(SequenceId id, int64_t changes) const {
  const Sequence& sequence = Get(id);
  const auto first =
      std::ranges::find_if(sequence.changed, [&](int64_t change) { return change > changes; });
  return first - sequence.changed.begin();
}

int64_t SequenceTable::Run(SequenceId id, int64_t list, int64_t block, int64_t most) const {
  const Sequence& sequence = Get(id);
  const PageId* page = sequence.ids.data() + list * sequence.capacity + block;
  LC_CHECK(block >= 0 && block < sequence.blocks);
  int64_t count = 1;
  while (count < most && block + count < sequence.blocks &&
         pool_.AreAdjacent(page[count - 1], page[count])) {
    ++count;
  }
  return count;
}

void SequenceTable::Commit(SequenceId id, int64_t rows) {
  Sequence& sequence = Get(id);
  LC_CHECK(shape_.BlocksFor(sequence.length + rows) <= sequence.blocks);
  sequence.length += rows;
}

int64_t SequenceTable::PagesHeld(std::span<const SequenceId> ids) const {
  if (shape_.lists == 0) return 0;
  // A block's pages are shared together, so checking its first page is enough.
  std::unordered_set<PageId> first;
  for (const SequenceId id : ids) {
    const Sequence& sequence = Get(id);
    first.insert(sequence.ids.begin(), sequence.ids.begin() + sequence.blocks);
  }
  return static_cast<int64_t>(first.size()) * shape_.lists;
}

template <class Body>
void SequenceTable::ForEachRun(SequenceId id, int64_t begin, int64_t tokens, const TableUnit& unit,
                               const Body& body) const {
  const Sequence& sequence = Get(id);
  LC_CHECK(begin >= 0 && begin + tokens <= sequence.blocks * shape_.page_tokens);
  LC_CHECK(begin % unit.tokens == 0 && tokens % unit.tokens == 0 &&
               shape_.page_tokens % unit.tokens == 0,
           "units of {} tokens in pages of {}", unit.tokens, shape_.page_tokens);
  for (int64_t list = 0; list < shape_.lists; ++list) {
    for (int64_t at = begin; at < begin + tokens;) {
      const int64_t within = at % shape_.page_tokens;
      const int64_t count = std::min(shape_.page_tokens - within, begin + tokens - at);
      std::byte* page = sequence.heads[static_cast<size_t>(list)][at / shape_.page_tokens];
      body(page + static_cast<uint64_t>(within / unit.tokens) * unit.bytes,
           static_cast<uint64_t>(count / unit.tokens) * unit.bytes);
      at += count;
    }
  }
}

void SequenceTable::Export(SequenceId id, int64_t begin, int64_t tokens, const TableUnit& unit,
                           std::byte* out) const {
  ForEachRun(id, begin, tokens, unit, [&](const std::byte* bytes, uint64_t count) {
    pool_.Read(out, bytes, count);
    out += count;
  });
}

void SequenceTable::Import(SequenceId id, int64_t begin, int64_t tokens, const TableUnit& unit,
                           const std::byte* in) {
  ForEachRun(id, begin, tokens, unit, [&](std::byte* bytes, uint64_t count) {
    pool_.Write(bytes, in, count);
    in += count;
  });
}

}  // namespace litecache::kv
