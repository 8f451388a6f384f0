#include "engine/prefix/prefix_reuse.h"

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/logging.h"

namespace litecache::engine {

// Blocks from the reading thread, by their place in the chain.
struct LoadedBlocks {
  std::mutex mutex;
  std::map<int64_t, std::optional<Block>> blocks;
};

// What a group waits for: a running group whose prompt begins with the same tokens, or the disk.
struct PrefixWait {
  const Group* leader = nullptr;
  int64_t common = 0;  // tokens that the leader must have in the cache

  std::vector<BlockKey> chain;  // loading: blocks [next, end) of it have not arrived yet
  int64_t next = 0;
  int64_t requested = 0;
  int64_t end = 0;
  std::shared_ptr<LoadedBlocks> loaded;
};

void PrefixReuse::WaitFor(Group* group, const Group& leader, int64_t common) {
  group->prefix_wait = std::make_shared<PrefixWait>();
  group->prefix_wait->leader = &leader;
  group->prefix_wait->common = common;
}

namespace {

// Bytes, plus one block, that the engine's thread copies between two steps: a few milliseconds.
constexpr uint64_t kCopyBytes = 16 << 20;
// How many blocks the reading thread may be ahead.
constexpr int64_t kReadAhead = 4;

int64_t UnitOf(const PrefixOptions& options) {
  if (options.chunk == 0) return kv::kPrefixTokens;
  return std::lcm(options.chunk, options.store.empty() ? kv::kPrefixTokens : kv::kBlockTokens);
}

// The group's sequence and the number of its prompt rows that can be shared while it runs.
std::pair<kv::SequenceId, int64_t> Shareable(const Group& group) {
  if (group.prefilling()) return {group.prompt_sequence, group.prefilled};
  for (const Sample& sample : group.samples) {
    if (sample.live) return {sample.sequence, group.prompt_size()};
  }
  return {0, 0};
}

}  // namespace

PrefixReuse::PrefixReuse(kv::Cache& cache, const PrefixOptions& options, std::function<void()> wake)
    : cache_(cache),
      wake_(std::move(wake)),
      root_(RootKey(options.space)),
      prompts_only_(options.chunk > 0),
      unit_(UnitOf(options)),
      index_(cache.CutsPrefixes()) {
  if (options.store.empty()) return;
  LC_CHECK(cache.CutsPrefixes(), "the store has blocks of any prefix");
  store_ = std::make_unique<BlockStore>(options.store, options.store_bytes);
  store_capacity_ = options.store_bytes;
}

PrefixReuse::~PrefixReuse() {
  store_.reset();  // its threads call wake_
  while (EvictOne()) {
  }
}

void PrefixReuse::Begin(Group* group, const Groups& running) {
  group->prompt_sequence = cache_.Create();
  if (group->all_logits()) return;  // kept rows have none
  ++stats_.requests;
  Resolve(group, running);
}

void PrefixReuse::Resolve(Group* group, const Groups& running) {
  group->prefix_wait.reset();
  const std::span<const int32_t> prompt =
      std::span(group->prompt()).first(static_cast<size_t>(Cut(group->prompt_size() - 1)));
  if (prompt.empty()) return;
  if (!cache_.CutsPrefixes()) return ResolveWhole(group, prompt, running);

  kv::SequenceId best = 0;
  int64_t tokens = 0;
  if (const auto match = index_.Find(prompt)) {
    best = match->sequence;
    tokens = Cut(match->tokens);
  }
  const Group* leader = nullptr;
  int64_t coming = 0;
  for (const auto& other : running) {
    if (other.get() == group) break;  // a group waits for earlier ones only
    if (!Shares(*other) || other->ended) continue;
    const int64_t common = Cut(CommonPrefix(prompt, other->prompt()));
    const auto [sequence, ready] = Shareable(*other);
    if (const int64_t now = std::min(common, Cut(ready)); now > tokens) {
      best = sequence;
      tokens = now;
    }
    if (other->prefilling() && common > coming) {
      leader = other.get();
      coming = common;
    }
  }
  std::vector<BlockKey> chain;
  int64_t on_disk = 0;
  if (store_ != nullptr) {
    chain = ChainKeys(root_, prompt, kv::kBlockTokens);
    on_disk = store_->CountChain(chain);
    if (prompts_only_) on_disk = Cut(on_disk * kv::kBlockTokens) / kv::kBlockTokens;
    // Also if memory has all of them: blocks in use stay on the disk.
    store_->Touch(std::span(chain).first(static_cast<size_t>(on_disk)));
  }
  if (leader != nullptr && coming > std::max(tokens, on_disk * kv::kBlockTokens)) {
    WaitFor(group, *leader, coming);
    return;
  }
  if (on_disk * kv::kBlockTokens > tokens) {
    const int64_t first = tokens / kv::kBlockTokens;
    StartFrom(group, best, first * kv::kBlockTokens);
    StartLoading(group, std::move(chain), first, on_disk);
    return;
  }
  StartFrom(group, best, tokens);
  Ready(group);
}

void PrefixReuse::StartFrom(Group* group, kv::SequenceId parent, int64_t tokens) {
  if (tokens == 0) return;
  const kv::SequenceId fork = cache_.ForkPrefix(parent, tokens);
  cache_.Release(std::exchange(group->prompt_sequence, fork));
  group->prefilled = tokens;
}

void PrefixReuse::Ready(Group* group) {
  group->prefix_wait.reset();
  if (group->prefilled == 0) return;
  ++stats_.hits;
  stats_.tokens += group->prefilled;
  group->channel->UpdateStats([&](RequestStats& stats) { stats.cached_tokens = group->prefilled; });
}

void PrefixReuse::StartLoading(Group* group, std::vector<BlockKey> chain, int64_t first,
                               int64_t end) {
  group->prefix_wait = std::make_shared<PrefixWait>();
  PrefixWait& wait = *group->prefix_wait;
  wait.chain = std::move(chain);
  wait.next = wait.requested = first;
  wait.end = end;
  wait.loaded = std::make_shared<LoadedBlocks>();
  RequestBlocks(&wait);
  // Reading replaces processing the prompt, in the statistics as well.
  group->started = Clock::now();
  group->channel->UpdateStats([&](RequestStats& stats) {
    stats.queue_seconds = SecondsBetween(group->submitted, *group->started);
  });
}

void PrefixReuse::RequestBlocks(PrefixWait* wait) {
  for (; wait->requested < std::min(wait->end, wait->next + kReadAhead); ++wait->requested) {
    const int64_t at = wait->requested;
    store_->Read(wait->chain[static_cast<size_t>(at)],
                 [at, loaded = wait->loaded, wake = wake_](std::optional<Block> block) {
                   {
                     const std::lock_guard lock(loaded->mutex);
                     loaded->blocks[at] = std::move(block);
                   }
                   wake();
                 });
  }
}

bool PrefixReuse::Import(Group* group, uint64_t* budget) {
  PrefixWait& wait = *group->prefix_wait;
  while (wait.next < wait.end) {
    std::optional<Block> block;
    {
      const std::lock_guard lock(wait.loaded->mutex);
      const auto found = wait.loaded->blocks.find(wait.next);
      if (found == wait.loaded->blocks.end() || *budget == 0) return false;
      block = std::move(found->second);
      wait.loaded->blocks.erase(found);
    }
    const BlockKey parent = wait.next == 0 ? root_ : wait.chain[static_cast<size_t>(wait.next - 1)];
    const auto begin = static_cast<size_t>(wait.next * kv::kBlockTokens);
    const auto tokens = std::span(group->prompt()).subspan(begin, kv::kBlockTokens);
    // The block must have exactly these tokens after exactly these predecessors.
    if (!block || block->header.parent != parent || block->header.space != root_ ||
        !std::ranges::equal(block->tokens, tokens) ||
        block->header.payload_bytes != block_bytes()) {
      break;
    }
    bool imported = false;
    while (!imported) {
      try {
        cache_.ImportBlock(group->prompt_sequence, block->payload());
        imported = true;
      } catch (const CapacityError&) {
        if (!EvictOne()) break;
      }
    }
    if (!imported) break;
    ++wait.next;
    group->prefilled += kv::kBlockTokens;
    stats_.tokens_loaded += kv::kBlockTokens;
    *budget -= std::min(*budget, block_bytes());
    RequestBlocks(&wait);
  }
  if (prompts_only_ && wait.next < wait.end) {  // a block was missing, perhaps within a chunk
    const int64_t whole = Cut(group->prefilled);
    if (whole == 0) cache_.Release(std::exchange(group->prompt_sequence, cache_.Create()));
    StartFrom(group, group->prompt_sequence, whole);
    group->prefilled = whole;
  }
  return true;
}

void PrefixReuse::Advance(const Groups& running) {
  uint64_t budget = kCopyBytes;
  for (const auto& group : running) {
    if (group->prefix_wait == nullptr || group->ended) continue;
    PrefixWait& wait = *group->prefix_wait;
    if (wait.leader == nullptr) {
      if (Import(group.get(), &budget)) Ready(group.get());
      continue;
    }
    // Only earlier groups are searched: a later group may have the address of one that has ended.
    const auto leads = [&](const auto& other) {
      return other.get() == wait.leader || other.get() == group.get();
    };
    const Group& leader = **std::find_if(running.begin(), running.end(), leads);
    // The leader has come far enough or has ended: there is nothing more to wait for.
    if (&leader == group.get() || leader.ended || leader.prefilled >= wait.common) {
      Resolve(group.get(), running);
    }
  }
  while (budget > 0 && store_ != nullptr && store_->WantsBlocks() && ExportOne()) {
    budget -= std::min(budget, block_bytes());
  }
  if (budget == 0) wake_();  // there may be more to do, and nothing else will wake the engine
}

void PrefixReuse::Keep(kv::SequenceId sequence, std::span<const int32_t> prompt,
                       std::span<const int32_t> generated) {
  if (!cache_.CutsPrefixes()) return;
  std::vector<int32_t> tokens(prompt.begin(), prompt.end());
  if (!prompts_only_) tokens.insert(tokens.end(), generated.begin(), generated.end());
  const int64_t length =
      Cut(std::min(cache_.PrefixLength(sequence), static_cast<int64_t>(tokens.size())));
  tokens.resize(static_cast<size_t>(length));
  KeepTokens(sequence, std::move(tokens));
}

void PrefixReuse::KeepTokens(kv::SequenceId sequence, std::vector<int32_t> tokens) {
  if (tokens.empty() || index_.Covers(tokens)) return;
  const kv::SequenceId kept = cache_.ForkPrefix(sequence, static_cast<int64_t>(tokens.size()));
  held_changed_ = true;
  if (store_ != nullptr) {
    std::vector<BlockKey> keys = ChainKeys(root_, tokens, kv::kBlockTokens);
    if (!keys.empty()) exports_.push_back({kept, tokens, std::move(keys), 0, BlockStore::Now()});
  }
  if (const auto covered = index_.Add(std::move(tokens), kept)) Forget(*covered);
}

void PrefixReuse::Forget(kv::SequenceId sequence) {
  std::erase_if(exports_, [&](const Export& item) { return item.sequence == sequence; });
  cache_.Release(sequence);
  held_changed_ = true;
}

bool PrefixReuse::EvictOne() {
  const auto oldest = index_.PopOldest();
  if (!oldest) return false;
  Forget(*oldest);
  ++stats_.evictions;
  return true;
}

bool PrefixReuse::ExportOne() {
  while (!exports_.empty()) {
    Export& item = exports_.front();
    while (item.next < item.keys.size() && store_->Has(item.keys[item.next])) ++item.next;
    if (item.next == item.keys.size()) {
      exports_.pop_front();
      continue;
    }
    const size_t at = item.next++;
    const BlockKey parent = at == 0 ? root_ : item.keys[at - 1];
    const auto begin = static_cast<int64_t>(at) * kv::kBlockTokens;
    Block block =
        MakeBlock(root_, parent, static_cast<uint32_t>(at),
                  std::span(item.tokens).subspan(static_cast<size_t>(begin), kv::kBlockTokens),
                  block_bytes());
    cache_.ExportBlock(item.sequence, begin, block.payload());
    store_->Write(std::move(block), item.used, wake_);
    return true;
  }
  return false;
}

void PrefixReuse::Close(std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  const auto left = [&] {
    return std::max(std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()),
                    std::chrono::milliseconds(0));
  };
  if (store_ != nullptr) {
    try {
      while (!exports_.empty() && store_->Stats().writing && left().count() > 0) {
        if (!store_->WantsBlocks()) {
          store_->WaitForWrites(left());
        } else if (!ExportOne()) {
          break;
        }
      }
    } catch (const std::exception& error) {  // the device or a rank is lost
      LogWarning("prefix store: {}", error.what());
    }
    if (!store_->WaitForWrites(left()) || (!exports_.empty() && store_->Stats().writing)) {
      LogWarning("prefix store: shut down before all blocks were written");
    }
    exports_.clear();
    store_.reset();
  }
  while (const auto oldest = index_.PopOldest()) Forget(*oldest);
}

PrefixStats PrefixReuse::Stats(bool idle) {
  // Counting visits every kept sequence's blocks, too slow for each step with thousands of
  // sequences.
  const Clock::time_point now = Clock::now();
  if (held_changed_ && (idle || index_.size() < 256 || SecondsBetween(held_at_, now) > 0.5)) {
    stats_.bytes = cache_.BytesHeld(index_.Sequences());
    held_changed_ = false;
    held_at_ = now;
  }
  stats_.sequences = static_cast<int64_t>(index_.size());
  if (store_ == nullptr) return stats_;
  const BlockStoreStats store = store_->Stats();
  stats_.store = true;
  stats_.store_writing = store.writing;
  stats_.store_blocks = store.blocks;
  stats_.store_bytes = store.bytes;
  stats_.store_capacity = store_capacity_;
  stats_.store_bytes_read = store.bytes_read;
  stats_.store_bytes_written = store.bytes_written;
  stats_.store_evictions = store.evictions;
  stats_.store_damaged = store.damaged;
  return stats_;
}

}  // namespace litecache::engine
