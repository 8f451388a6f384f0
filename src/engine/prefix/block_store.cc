#include "engine/prefix/block_store.h"

#include <memory>

#include "base/error.h"
#include "base/logging.h"
#include "base/units.h"

namespace litecache::engine {
namespace {

// Most bytes, plus one block, that wait for the disk. They are copies of rows that a sequence still
// holds, so more than what keeps the disk busy gains nothing.
constexpr uint64_t kQueueBytes = 64 << 20;

// A chain's blocks are a microsecond apart, so that their order shows in the files' times, too.
int64_t UsedAt(int64_t now, uint64_t depth) { return now - static_cast<int64_t>(depth) * 1000; }

}  // namespace

BlockStore::BlockStore(std::filesystem::path directory, uint64_t max_bytes)
    : directory_(std::move(directory)), max_bytes_(max_bytes) {
  const StoreDirectory::Scan scan = directory_.Read();
  if (scan.damaged > 0) {
    LogWarning("prefix store {}: {} damaged blocks removed", directory_.path().string(),
               scan.damaged);
  }
  if (scan.foreign > 0) {
    LogWarning("prefix store {}: {} foreign files are left unchanged, the first is {}",
               directory_.path().string(), scan.foreign, scan.first_foreign);
  }
  const std::lock_guard lock(mutex_);
  for (const auto& found : scan.blocks) Insert(found.key, {found.bytes, found.used});
  MakeRoom(0);
  stats_.damaged = scan.damaged;
  stats_.writing = true;
  LogInfo("prefix store {}: {} blocks, {} of {}", directory_.path().string(), stats_.blocks,
          FormatBytes(stats_.bytes), FormatBytes(max_bytes_));
}

void BlockStore::Insert(const BlockKey& key, const File& file) {
  Erase(key);
  files_.emplace(key, file);
  by_use_.emplace(file.used, key);
  ++stats_.blocks;
  stats_.bytes += file.bytes;
}

void BlockStore::Erase(const BlockKey& key) {
  const auto found = files_.find(key);
  if (found == files_.end()) return;
  by_use_.erase({found->second.used, key});
  --stats_.blocks;
  stats_.bytes -= found->second.bytes;
  files_.erase(found);
}

void BlockStore::MakeRoom(uint64_t bytes) {
  while (!by_use_.empty() && stats_.bytes + bytes > max_bytes_) {
    const BlockKey key = by_use_.begin()->second;
    directory_.Remove(key);
    Erase(key);
    ++stats_.evictions;
  }
}

int64_t BlockStore::Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

int64_t BlockStore::CountChain(std::span<const BlockKey> chain) const {
  const std::lock_guard lock(mutex_);
  int64_t count = 0;
  for (const BlockKey& key : chain) {
    if (!files_.contains(key)) break;
    ++count;
  }
  return count;
}

bool BlockStore::Has(const BlockKey& key) const {
  const std::lock_guard lock(mutex_);
  return files_.contains(key) || queued_.contains(key);
}

void BlockStore::Touch(std::span<const BlockKey> chain) {
  if (chain.empty()) return;
  const int64_t now = Now();
  std::vector<std::pair<BlockKey, int64_t>> touched;
  {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < chain.size(); ++i) {
      const auto found = files_.find(chain[i]);
      if (found == files_.end()) continue;
      by_use_.erase({found->second.used, chain[i]});
      found->second.used = UsedAt(now, i);
      by_use_.emplace(found->second.used, chain[i]);
      touched.emplace_back(chain[i], found->second.used);
    }
  }
  // Written to the files, so that the order outlives the process.
  readers_[0].Post([this, touched = std::move(touched)] {
    for (const auto& [key, used] : touched) directory_.SetUsed(key, used);
  });
}

void BlockStore::Read(const BlockKey& key, std::function<void(std::optional<Block>)> done) {
  readers_[next_reader_++ % readers_.size()].Post(
      [this, key, done = std::move(done)] { ReadNow(key, done); });
}

void BlockStore::ReadNow(const BlockKey& key,
                         const std::function<void(std::optional<Block>)>& done) {
  if (CountChain(std::span(&key, 1)) == 0) return done(std::nullopt);  // evicted since the request
  try {
    Block block = ParseBlock(directory_.ReadBlock(key), directory_.PathOf(key));
    if (block.header.key != key) {
      throw FileError("{}: holds another block than its name says", directory_.PathOf(key));
    }
    {
      const std::lock_guard lock(mutex_);
      stats_.bytes_read += block.bytes.size();
    }
    done(std::move(block));
  } catch (const std::exception& error) {
    {
      const std::lock_guard lock(mutex_);
      // If the block was evicted in the meantime, nothing is wrong.
      if (files_.contains(key)) {
        LogWarning("prefix store: removed {}", error.what());
        directory_.Remove(key);
        Erase(key);
        ++stats_.damaged;
      }
    }
    done(std::nullopt);
  }
}

bool BlockStore::WantsBlocks() const {
  const std::lock_guard lock(mutex_);
  return stats_.writing && queued_bytes_ < kQueueBytes;
}

void BlockStore::Write(Block block, int64_t used, std::function<void()> done) {
  {
    const std::lock_guard lock(mutex_);
    if (!queued_.insert(block.header.key).second) return;
    queued_bytes_ += block.bytes.size();
  }
  // std::function requires a copyable callable.
  auto shared = std::make_shared<Block>(std::move(block));
  writer_.Post([this, shared, used, done = std::move(done)] {
    WriteNow(shared.get(), UsedAt(used, shared->header.depth));
    if (done) done();
  });
}

void BlockStore::WriteNow(Block* block, int64_t used) {
  const BlockKey key = block->header.key;
  const uint64_t bytes = block->bytes.size();
  bool write = false;
  {
    const std::lock_guard lock(mutex_);
    write = stats_.writing && bytes <= max_bytes_ && !files_.contains(key);
    if (write) MakeRoom(bytes);
  }
  std::string failure;
  if (write) {
    try {
      Seal(block);
      directory_.WriteBlock(key, block->bytes);
    } catch (const std::exception& error) {
      failure = error.what();
    }
  }
  if (write && failure.empty()) directory_.SetUsed(key, used);
  const std::lock_guard lock(mutex_);
  queued_.erase(key);
  queued_bytes_ -= bytes;
  if (!failure.empty() && stats_.writing) {
    stats_.writing = false;
    LogWarning("prefix store: {}; nothing more is written to {} until the next start", failure,
               directory_.path().string());
  }
  if (!write || !failure.empty()) return;
  Insert(key, {bytes, used});
  stats_.bytes_written += bytes;
}

BlockStoreStats BlockStore::Stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace litecache::engine
