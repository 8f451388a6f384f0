#include "kv/streaming/page_table.h"

#include <algorithm>
#include <unordered_set>

#include "base/error.h"

namespace litecache::kv::streaming {

PageTable::~PageTable() {
  while (!sequences_.empty()) Release(sequences_.begin()->first);
}

SequenceId PageTable::Create() {
  sequences_.emplace(next_id_, Sequence{});
  return next_id_++;
}

SequenceId PageTable::Fork(SequenceId parent) {
  const Sequence& from = sequences_.at(parent);
  if (from.page) pool_.AddReference(*from.page);
  sequences_.emplace(next_id_, Sequence{from.length, from.written, from.page, {}});
  return next_id_++;
}

void PageTable::Release(SequenceId id) {
  Sequence& sequence = sequences_.at(id);
  Drop(&sequence.page);
  Drop(&sequence.next);
  sequences_.erase(id);
}

void PageTable::Truncate(SequenceId id, int64_t tokens) {
  Sequence& sequence = sequences_.at(id);
  sequence.length = tokens;
  Drop(&sequence.next);  // of a chunk that failed
  if (tokens > 0) return;
  Drop(&sequence.page);
  sequence.written = 0;
}

void PageTable::Drop(std::optional<PageId>* page) {
  if (*page) pool_.DropReference(**page);
  page->reset();
}

int64_t PageTable::PagesHeld(std::span<const SequenceId> ids) const {
  std::unordered_set<PageId> pages;
  for (const SequenceId id : ids) {
    const Sequence& sequence = sequences_.at(id);
    for (const auto& page : {sequence.page, sequence.next}) {
      if (page) pages.insert(*page);
    }
  }
  return static_cast<int64_t>(pages.size());
}

void PageTable::BeginStep(const Step& step) {
  int64_t fresh = 0;
  shared_.clear();
  for (const StepSequence& part : step.sequences) {
    const Sequence& sequence = sequences_.at(part.id);
    if (!InPlace(part)) {
      fresh += sequence.next ? 0 : 1;
    } else if (!sequence.page) {
      ++fresh;
    } else if (pool_.references(*sequence.page) > 1) {
      shared_.push_back(*sequence.page);
    }
  }
  pool_.Reserve(fresh + CopiesNeeded(pool_, &shared_));
  for (const StepSequence& part : step.sequences) {
    Sequence& sequence = sequences_.at(part.id);
    if (!InPlace(part)) {
      if (!sequence.next) sequence.next = pool_.Take();
      continue;
    }
    Drop(&sequence.next);  // of a chunk that failed
    sequence.written = std::max(sequence.written, sequence.length + part.rows);
    if (!sequence.page) {
      sequence.page = pool_.Take();
    } else if (pool_.references(*sequence.page) > 1) {
      const PageId own = pool_.Take();
      pool_.CopyPage(own, *sequence.page, pool_.page_bytes());
      pool_.DropReference(*sequence.page);
      sequence.page = own;
    }
  }
}

std::byte* PageTable::Target(SequenceId id) const {
  const Sequence& sequence = sequences_.at(id);
  return pool_.data(sequence.next ? *sequence.next : sequence.page.value());
}

const std::byte* PageTable::Source(SequenceId id) const {
  const Sequence& sequence = sequences_.at(id);
  return sequence.next && sequence.page ? pool_.data(*sequence.page) : nullptr;
}

void PageTable::EndStep(const Step& step) {
  for (const StepSequence& part : step.sequences) {
    Sequence& sequence = sequences_.at(part.id);
    sequence.length += part.rows;
    if (InPlace(part)) continue;
    LC_CHECK(sequence.next.has_value(), "EndStep() without BeginStep()");
    sequence.written = std::max(sequence.written, sequence.length);
    Drop(&sequence.page);
    sequence.page = sequence.next;
    sequence.next.reset();
  }
}

}  // namespace litecache::kv::streaming
