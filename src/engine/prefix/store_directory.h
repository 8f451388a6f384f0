// The files of a prefix store: names, lock, scan at start, atomic writes. block_store.h keeps the
// index of blocks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/prefix/block_file.h"

namespace litecache::engine {

// DIR/.lock, and DIR/ab/ab...(32 digits).kv for every block. The contents come from prompts, so
// only the owner can access directories and files (0700, 0600).
class StoreDirectory {
 public:
  // Creates the directory and locks it until the process ends. Throws FileError if that fails; the
  // message says so if another process holds the lock.
  explicit StoreDirectory(std::filesystem::path directory);
  ~StoreDirectory();
  StoreDirectory(const StoreDirectory&) = delete;
  StoreDirectory& operator=(const StoreDirectory&) = delete;

  const std::filesystem::path& path() const { return directory_; }
  std::string PathOf(const BlockKey& key) const;

  struct Found {
    BlockKey key;
    uint64_t bytes = 0;
    int64_t used = 0;  // nanoseconds since 1970
  };
  struct Scan {
    std::vector<Found> blocks;
    int64_t damaged = 0;  // removed
    int64_t foreign = 0;  // left unchanged
    std::string first_foreign;
  };
  // Reads every file's header. Removes damaged blocks and leftovers of interrupted writes.
  Scan Read() const;

  // Throw FileError.
  std::vector<std::byte> ReadBlock(const BlockKey& key) const;
  // Atomic: writes under another name first. Not flushed to disk: damage by a power failure is
  // found by the checksum.
  void WriteBlock(const BlockKey& key, std::span<const std::byte> bytes) const;

  void Remove(const BlockKey& key) const;  // errors are ignored
  void SetUsed(const BlockKey& key, int64_t nanoseconds) const;

 private:
  std::filesystem::path directory_;
  int lock_ = -1;
};

}  // namespace litecache::engine
