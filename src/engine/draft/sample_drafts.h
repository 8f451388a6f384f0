// A sample's drafts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft/draft_length.h"
#include "engine/draft/lookup.h"
#include "kv/cache.h"

namespace litecache::engine {

struct SampleDrafts {
  explicit SampleDrafts(std::span<const int32_t> prompt) : lookup(prompt) {}

  LookupDrafter lookup;
  Acceptance acceptance;
  std::vector<int32_t> next;    // for the next step; may be empty
  int64_t match = 0;            // the length of the match that proposed it
  kv::SequenceId sequence = 0;  // the draft model's; 0: it does not draft for this sample
};

}  // namespace litecache::engine
