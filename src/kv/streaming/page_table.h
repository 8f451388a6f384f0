// One page per sequence: shared by forks until one of them writes, and replaced by a prompt chunk.
// Decode rows and drafted chunks are written in place.
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
  // The pool must outlive the table. most_in_place: rows of the longest chunk that is written in
  // place.
  PageTable(PagePool& pool, int64_t most_in_place) : pool_(pool), most_in_place_(most_in_place) {}
  ~PageTable();
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;

  // Adds an empty sequence; ids are never reused.
  SequenceId Create();
  SequenceId Fork(SequenceId parent);
  void Release(SequenceId id);
  int64_t Length(SequenceId id) const { return sequences_.at(id).length; }
  // The most tokens that the sequence had when its page was written, in steps that have failed and
  // before it was truncated, too.
  int64_t Written(SequenceId id) const { return sequences_.at(id).written; }
  // Makes the sequence end after `tokens` tokens, whose rows the page must still hold.
  void Truncate(SequenceId id, int64_t tokens);
  // Number of pages these sequences hold; shared pages count once.
  int64_t PagesHeld(std::span<const SequenceId> ids) const;

  // Gives a sequence that is written in place a page that it does not share, and one with a prompt
  // chunk a second page beside its current one. Throws CapacityError, with nothing changed, if the
  // pool has too few pages. A step may be begun again: nothing is taken twice.
  void BeginStep(const Step& step);
  // The page that the current step writes, and the one whose rows must be copied there first (null
  // if there is none).
  std::byte* Target(SequenceId id) const;
  const std::byte* Source(SequenceId id) const;
  // Commits the step's tokens; returns pages that chunks have replaced.
  void EndStep(const Step& step);

 private:
  struct Sequence {
    int64_t length = 0;
    int64_t written = 0;
    std::optional<PageId> page;  // none: the sequence has no tokens
    std::optional<PageId> next;  // written by a prompt chunk until the step ends
  };

  bool InPlace(const StepSequence& part) const {
    return part.decode || (part.drafted && part.rows <= most_in_place_);
  }
  void Drop(std::optional<PageId>* page);

  PagePool& pool_;
  const int64_t most_in_place_;
  SequenceId next_id_ = 1;
  std::unordered_map<SequenceId, Sequence> sequences_;
  std::vector<PageId> shared_;  // scratch
};

}  // namespace litecache::kv::streaming
