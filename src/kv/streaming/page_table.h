// One page per sequence: shared by forks until one of them writes, and replaced by a prompt chunk.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/cache.h"
#include "kv/pages/page_pool.h"

namespace litecache::kv::streaming {

class PageTable {
 public:
  // The pool must outlive the table.
  explicit PageTable(PagePool& pool) : pool_(pool) {}
  ~PageTable();
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;

  // Adds an empty sequence; ids are never reused.
  SequenceId Create();
  SequenceId Fork(SequenceId parent);
  void Release(SequenceId id);
  int64_t Length(SequenceId id) const { return sequences_.at(id).length; }
  // Number of pages these sequences hold; shared pages count once.
  int64_t PagesHeld(std::span<const SequenceId> ids) const;

  // Gives a decode sequence a page that it does not share, and a sequence with a prompt chunk a
  // second page beside its current one. Throws CapacityError, with nothing changed, if the pool has
  // too few pages. A step may be begun again: nothing is taken twice.
  void BeginStep(const Step& step);
  // The page that the current step writes, and the one before it (null if there is none).
  std::byte* Target(SequenceId id) const;
  const std::byte* Source(SequenceId id) const;
  // Commits the step's tokens; returns pages that chunks have replaced.
  void EndStep(const Step& step);

 private:
  struct Sequence {
    int64_t length = 0;
    std::optional<PageId> page;  // none: the sequence has no tokens
    std::optional<PageId> next;  // written by a prompt chunk until the step ends
  };

  PagePool& pool_;
  SequenceId next_id_ = 1;
  std::unordered_map<SequenceId, Sequence> sequences_;
  std::vector<PageId> shared_;  // scratch
};

}  // namespace litecache::kv::streaming
