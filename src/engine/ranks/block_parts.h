// Blocks of the prefix store with several ranks. Rank 0 has the store, and a block holds the parts
// of all ranks. The others' parts pass through the group's shared memory, where they have the
// places that they have in the block; each of them counts on its board what it has done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/process_group.h"

namespace litecache::engine {

// ---- Rank 0. ----

// Before a call is sent that the others answer.
void ExpectAnswers(const parallel::ProcessGroup& group);
// Until all others have answered all such calls. Throws RankEnded.
void WaitForAnswers(const parallel::ProcessGroup& group);

struct PublishedPart {
  uint64_t identity = 0;  // a hash of CachePlan::Identity()
  uint64_t bytes = 0;     // Cache::BlockBytes()
};
PublishedPart PartOf(const parallel::ProcessGroup& group, int rank);

// ---- The other ranks. ----

void Answer(const parallel::ProcessGroup& group);
// Answers with what PartOf() returns.
void PublishPart(const parallel::ProcessGroup& group, const std::string& identity, uint64_t bytes);
// This rank's part of the block in shared memory. ends: of all ranks' parts.
std::span<std::byte> SharedPart(parallel::ProcessGroup& group, const std::vector<uint64_t>& ends);

}  // namespace litecache::engine
