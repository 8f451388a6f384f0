#include "engine/ranks/block_parts.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "engine/prefix/block_key.h"

namespace litecache::engine {
namespace {

// The last words of a rank's board; the counters are at its beginning. Calls: on rank 0's, the
// calls that it sends; on the others', those that they have answered.
enum class Word : size_t { kCalls, kIdentity, kBytes };

std::atomic_ref<uint64_t> At(const parallel::ProcessGroup& group, int rank, Word word) {
  return std::atomic_ref(group.board(rank).last(3)[static_cast<size_t>(word)]);
}

}  // namespace

void ExpectAnswers(const parallel::ProcessGroup& group) { At(group, 0, Word::kCalls).fetch_add(1); }

void WaitForAnswers(const parallel::ProcessGroup& group) {
  const uint64_t calls = At(group, 0, Word::kCalls).load();
  for (int rank = 1; rank < group.ranks(); ++rank) {
    while (At(group, rank, Word::kCalls).load() < calls) {
      group.Check();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
}

PublishedPart PartOf(const parallel::ProcessGroup& group, int rank) {
  return {At(group, rank, Word::kIdentity).load(), At(group, rank, Word::kBytes).load()};
}

void Answer(const parallel::ProcessGroup& group) {
  At(group, group.rank(), Word::kCalls).fetch_add(1);
}

void PublishPart(const parallel::ProcessGroup& group, const std::string& identity, uint64_t bytes) {
  At(group, group.rank(), Word::kIdentity).store(RootKey(identity).low);
  At(group, group.rank(), Word::kBytes).store(bytes);
  Answer(group);
}

std::span<std::byte> SharedPart(parallel::ProcessGroup& group, const std::vector<uint64_t>& ends) {
  const auto rank = static_cast<size_t>(group.rank());
  LC_CHECK(rank > 0 && rank < ends.size());
  return group.SharedMemory(ends.back()).first(ends[rank]).subspan(ends[rank - 1]);
}

}  // namespace litecache::engine
