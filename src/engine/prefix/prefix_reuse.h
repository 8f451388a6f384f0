// What requests of the same beginning share: sequences that have ended stay in the KV cache until
// somebody needs their memory, and their blocks go to a store on disk. Used by the engine's thread
// alone.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/group.h"
#include "engine/prefix/block_store.h"
#include "engine/prefix/prefix_index.h"
#include "kv/cache.h"
#include "litecache/engine.h"

namespace litecache::engine {

struct PrefixOptions {
  std::filesystem::path store;  // empty: memory only
  uint64_t store_bytes = 0;
  // All that a block's bytes depend on beside its tokens: the model and CachePlan::Identity().
  std::string space;
};

class PrefixReuse {
 public:
  using Groups = std::list<std::unique_ptr<Group>>;

  // `wake` rings the engine's thread; it is called on others. Throws FileError for a store that
  // cannot be used.
  PrefixReuse(kv::Cache& cache, const PrefixOptions& options, std::function<void()> wake);
  ~PrefixReuse();

  // Gives a group that was admitted the part of its prompt that is there, and sets its
  // prompt_sequence and prefilled. Where more is on disk, or just being computed for another
  // request, the group waits for it (Group::prefix_wait). The last token of a prompt is always
  // computed: its logits are wanted.
  void Begin(Group* group, const Groups& running);
  // Goes on with what waits, and with what is to be written. Quick: about 16 MiB are copied at
  // most.
  void Advance(const Groups& running);

  // Keeps what can be kept of a sequence that ends, which begins with the prompt and then the
  // generated tokens. The sequence itself stays the caller's, who releases it.
  void Keep(kv::SequenceId sequence, std::span<const int32_t> prompt,
            std::span<const int32_t> generated);
  // Gives up the kept sequence that was of use longest ago; false where there is none.
  bool EvictOne();
  // The end: writes what has not been written yet, for up to `limit`, and keeps nothing more.
  void Close(std::chrono::milliseconds limit);

  // idle: nothing waits for the answer, so that it is exact; else the bytes of hundreds of
  // sequences may be half a second old.
  PrefixStats Stats(bool idle);

 private:
  struct Export {
    kv::SequenceId sequence = 0;
    std::vector<int32_t> tokens;
    std::vector<BlockKey> keys;
    size_t next = 0;
    int64_t used = 0;  // BlockStore::Now()
  };

  // The best that there is now; false: the group waits for a running one's rows.
  void Resolve(Group* group, const Groups& running);
  void StartFrom(Group* group, kv::SequenceId parent, int64_t tokens);
  void StartLoading(Group* group, std::vector<BlockKey> keys, int64_t first, int64_t end);
  void RequestBlocks(PrefixWait* wait);
  // Takes over blocks that have arrived; false: the group still waits.
  bool Import(Group* group, uint64_t* budget);
  void Ready(Group* group);
  void Forget(kv::SequenceId sequence);
  // Writes one block; false: there is none to write.
  bool ExportOne();
  uint64_t block_bytes() const { return cache_.BlockBytes(); }

  kv::Cache& cache_;
  std::function<void()> wake_;
  BlockKey root_;
  PrefixIndex index_;
  std::unique_ptr<BlockStore> store_;
  uint64_t store_capacity_ = 0;
  std::deque<Export> exports_;

  PrefixStats stats_;
  bool held_changed_ = false;
  Clock::time_point held_at_;
};

}  // namespace litecache::engine
