// Blocks of KV on disk: an index in the order of last use, and threads that read and write the
// blocks.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "engine/prefix/block_file.h"
#include "engine/prefix/io_thread.h"
#include "engine/prefix/store_directory.h"

namespace litecache::engine {

struct BlockStoreStats {
  int64_t blocks = 0;
  uint64_t bytes = 0;  // of files
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  int64_t evictions = 0;
  int64_t damaged = 0;   // unusable blocks, found at start or later
  bool writing = false;  // false after a write has failed: nothing more is written
};

// Thread-safe. Files of other models and settings count towards the size, too, and are evicted in
// their turn.
class BlockStore {
 public:
  // Locks the directory and reads its contents; evicts blocks beyond max_bytes. Throws FileError.
  BlockStore(std::filesystem::path directory, uint64_t max_bytes);

  // How many leading blocks of the chain are in the store.
  int64_t CountChain(std::span<const BlockKey> chain) const;
  // Whether the block is in the store or queued to be written.
  bool Has(const BlockKey& key) const;
  // Marks blocks of a chain as used at present, the first ones latest: without its beginning a
  // chain is useless, so the beginning must be evicted last.
  void Touch(std::span<const BlockKey> chain);

  // Calls `done` on a reading thread, for several blocks in any order: with the block, or with
  // nothing if it is gone or damaged (a damaged block is removed, with a warning).
  void Read(const BlockKey& key, std::function<void(std::optional<Block>)> done);

  // Whether the write queue has room; false also after a write has failed.
  bool WantsBlocks() const;
  // Queues a block with a complete payload. used: Now() at the time of the chain's use, the same
  // for the whole chain, so that its beginning is evicted last here, too. done: if set, called on
  // the writing thread afterwards. After a failed write, which is reported once as a warning,
  // nothing more is written.
  void Write(Block block, int64_t used, std::function<void()> done);
  static int64_t Now();  // nanoseconds since 1970
  // Waits until everything queued has been written; false if that takes longer than `limit`.
  bool WaitForWrites(std::chrono::milliseconds limit) { return writer_.WaitUntilIdle(limit); }

  BlockStoreStats Stats() const;

 private:
  struct File {
    uint64_t bytes = 0;
    int64_t used = 0;  // nanoseconds since 1970
  };

  // Call with the lock held.
  void Insert(const BlockKey& key, const File& file);
  void Erase(const BlockKey& key);
  void MakeRoom(uint64_t bytes);

  void WriteNow(Block* block, int64_t used);
  void ReadNow(const BlockKey& key, const std::function<void(std::optional<Block>)>& done);

  const StoreDirectory directory_;
  const uint64_t max_bytes_;

  mutable std::mutex mutex_;
  std::unordered_map<BlockKey, File, BlockKeyHash> files_;
  std::set<std::pair<int64_t, BlockKey>> by_use_;
  std::unordered_set<BlockKey, BlockKeyHash> queued_;
  uint64_t queued_bytes_ = 0;
  BlockStoreStats stats_;

  // Declared last: their jobs use all of the above.
  // One thread reads about 1 GB/s from a page cache, and checks it.
  std::array<IoThread, 4> readers_;
  std::atomic<size_t> next_reader_ = 0;
  IoThread writer_;
};

}  // namespace litecache::engine
