// Blocks of KV on disk: which exist, in the order of their last use, and two threads that read and
// write them.
#pragma once

#include <chrono>
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
  int64_t damaged = 0;   // blocks found unusable, at start or later
  bool writing = false;  // false after a write has failed: nothing is written any more
};

// Thread-safe. Files of other models and settings count against the size as well and are evicted in
// their turn.
class BlockStore {
 public:
  // Takes the directory's lock and reads what is there; evicts what is beyond max_bytes. Throws
  // FileError.
  BlockStore(std::filesystem::path directory, uint64_t max_bytes);

  // How many blocks of the chain are there, from the first one on.
  int64_t CountChain(std::span<const BlockKey> chain) const;
  // There, or on its way to the disk.
  bool Has(const BlockKey& key) const;
  // Marks blocks of a chain as used now, the first ones latest: without its beginning a chain is of
  // no use, so that must go last.
  void Touch(std::span<const BlockKey> chain);

  // Calls `done` on the reading thread: with the block as it was written, or with nothing where it
  // is gone or damaged (then it is removed, with a warning).
  void Read(const BlockKey& key, std::function<void(std::optional<Block>)> done);

  // Whether the queue to the disk has room; false also when writing has failed.
  bool WantsBlocks() const;
  // Queues the block, whose payload is complete. `used`: Now() of when its chain was, the same for
  // all of it, so that its beginning goes last here, too. `done`, where there is one, is called on
  // the writing thread afterwards. A write that fails is reported once, as a warning, and is the
  // last one.
  void Write(Block block, int64_t used, std::function<void()> done);
  static int64_t Now();  // nanoseconds since 1970
  // Waits until all that is queued has been written; false: not within the time.
  bool WaitForWrites(std::chrono::milliseconds limit) { return writer_.WaitUntilIdle(limit); }

  BlockStoreStats Stats() const;

 private:
  struct File {
    uint64_t bytes = 0;
    int64_t used = 0;  // nanoseconds since 1970
  };

  // With the lock held.
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

  // Last: their jobs use all of the above.
  IoThread reader_;
  IoThread writer_;
};

}  // namespace litecache::engine
