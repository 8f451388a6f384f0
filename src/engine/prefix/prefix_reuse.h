// Reuse of KV between requests with the same beginning: sequences that have ended stay in the KV
// cache until their memory is needed, and their blocks are written to a store on disk. Where the
// cache cannot cut prefixes (kv::Cache::CutsPrefixes), forks of prompts stay, made at chosen places
// while the prompt is processed. Used by the engine's thread only.
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
  // Everything besides the tokens that determines a block's bytes: the model and
  // CachePlan::Identity().
  std::string space;
  // Not 0: only rows of whole chunks of prompts, cut at multiples of this, are kept and shared, so
  // that what a prompt shares was computed as it would compute it (EngineOptions::deterministic).
  int64_t chunk = 0;
};

class PrefixReuse {
 public:
  using Groups = std::list<std::unique_ptr<Group>>;

  // wake: wakes the engine's thread; called on other threads. Throws FileError for a store that
  // cannot be used.
  PrefixReuse(kv::Cache& cache, const PrefixOptions& options, std::function<void()> wake);
  ~PrefixReuse();

  // Whether others may share what the group computes. Prompts whose rows all have logits are cut at
  // other places than PrefixOptions::chunk.
  bool Shares(const Group& group) const {
    return group.score == nullptr && !(prompts_only_ && group.all_logits());
  }
  // Gives an admitted group the available part of its prompt, and sets its prompt_sequence,
  // prefilled and keep_at. If more is on disk, or is being computed for another request, the group
  // waits for it (Group::prefix_wait). The last token of a prompt is always computed, because its
  // logits are needed.
  void Begin(Group* group, const Groups& running);
  // Continues loading for waiting groups and writing blocks. Quick: copies about 16 MiB at most.
  void Advance(const Groups& running);

  // Keeps the prompt of a running group if it has reached a place of its keep_at.
  void KeepPrompt(Group* group);
  // Keeps as much as possible of a sequence that ends; it consists of the prompt and the generated
  // tokens. Nothing if prefixes cannot be cut: a sequence rarely ends where another one goes on.
  // The caller still owns the sequence and releases it.
  void Keep(kv::SequenceId sequence, std::span<const int32_t> prompt,
            std::span<const int32_t> generated);
  // Releases the least recently used kept sequence; false if there is none.
  bool EvictOne();
  // For shutdown: writes pending blocks for up to `limit`, and keeps nothing more.
  void Close(std::chrono::milliseconds limit);

  // idle: no request is waiting, so the answer may take the time to be exact; otherwise the bytes
  // of hundreds of sequences may be half a second old.
  PrefixStats Stats(bool idle);

 private:
  struct Export {
    kv::SequenceId sequence = 0;
    std::vector<int32_t> tokens;
    std::vector<BlockKey> keys;
    size_t next = 0;
    int64_t used = 0;  // BlockStore::Now()
  };

  // Uses the best available source, or lets the group wait for a better one.
  void Resolve(Group* group, const Groups& running);
  // The same for a cache that cannot cut prefixes (prefix_places.cc). prompt: what can be shared.
  void ResolveWhole(Group* group, std::span<const int32_t> prompt, const Groups& running);
  // Sets the places where the group, which goes on from its prefilled tokens, is kept. shared: the
  // longest common beginning with another prompt.
  void ChoosePlaces(Group* group, int64_t shared) const;
  void WaitFor(Group* group, const Group& leader, int64_t common);
  void StartFrom(Group* group, kv::SequenceId parent, int64_t tokens);
  void StartLoading(Group* group, std::vector<BlockKey> keys, int64_t first, int64_t end);
  void RequestBlocks(PrefixWait* wait);
  // Imports blocks that have arrived; false if the group still waits.
  bool Import(Group* group, uint64_t* budget);
  void Ready(Group* group);
  // Keeps the first tokens of a sequence, which are `tokens`.
  void KeepTokens(kv::SequenceId sequence, std::vector<int32_t> tokens);
  void Forget(kv::SequenceId sequence);
  // Writes one block; false if there is none to write.
  bool ExportOne();
  uint64_t block_bytes() const { return cache_.BlockBytes(); }
  int64_t Cut(int64_t tokens) const { return tokens - tokens % unit_; }

  kv::Cache& cache_;
  std::function<void()> wake_;
  BlockKey root_;
  bool prompts_only_;
  int64_t unit_;  // prefixes are cut at its multiples
  PrefixIndex index_;
  std::unique_ptr<BlockStore> store_;
  uint64_t store_capacity_ = 0;
  std::deque<Export> exports_;

  PrefixStats stats_;
  bool held_changed_ = false;
  Clock::time_point held_at_;
};

}  // namespace litecache::engine
