// One page a sequence: shared by forks until one of them writes, and replaced by a prompt's chunk.
#pragma once

#include <cstdint>
#include <optional>
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

  // An empty sequence; ids are never reused.
  SequenceId Create();
  SequenceId Fork(SequenceId parent);
  void Release(SequenceId id);
  int64_t Length(SequenceId id) const { return sequences_.at(id).length; }

  // A decode sequence's page becomes its own; one that takes a prompt's chunk gets another page
  // beside the one it has. Throws CapacityError, having changed nothing, when the pool cannot give
  // them. A step may be begun again: nothing is taken twice.
  void BeginStep(const Step& step);
  // Where a step in progress writes, and what was there before it (null: nothing was).
  std::byte* Target(SequenceId id) const;
  const std::byte* Source(SequenceId id) const;
  // The step's tokens belong to their sequences; pages that a chunk has replaced are given back.
  void EndStep(const Step& step);

 private:
  struct Sequence {
    int64_t length = 0;
    std::optional<PageId> page;  // none: it has no tokens
    std::optional<PageId> next;  // what a chunk of a prompt writes, until the step is ended
  };

  PagePool& pool_;
  SequenceId next_id_ = 1;
  std::unordered_map<SequenceId, Sequence> sequences_;
  std::vector<PageId> shared_;  // scratch
};

}  // namespace litecache::kv::streaming
