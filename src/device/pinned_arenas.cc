#include "device/pinned_arenas.h"

namespace litecache {

void PinnedArenas::Keep() {
  const std::lock_guard lock(mutex_);
  ++keepers_;
}

void PinnedArenas::Forget() {
  const std::lock_guard lock(mutex_);
  if (--keepers_ == 0) DropLocked();
}

void PinnedArenas::Drop() {
  const std::lock_guard lock(mutex_);
  DropLocked();
}

void PinnedArenas::DropLocked() {
  for (auto arena = arenas_.begin(); arena != arenas_.end();) {
    if (arena->second.free.size() * arena->second.block == kArenaBytes) {
      source_.unpin(arena->first);
      arena = arenas_.erase(arena);
    } else {
      ++arena;
    }
  }
}

void PinnedArenas::Divide(Arenas::value_type& arena, size_t bytes) {
  arena.second.block = bytes;
  arena.second.free.clear();
  // Blocks are taken from the list's end, so the arena's first block is put there.
  for (size_t end = kArenaBytes; end > 0; end -= bytes) {
    arena.second.free.push_back(arena.first + end - bytes);
  }
}

void* PinnedArenas::Take(size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (keepers_ == 0 || bytes < kLeastBlock || bytes > kArenaBytes || kArenaBytes % bytes != 0) {
    return nullptr;
  }
  Arenas::value_type* found = nullptr;
  for (auto& arena : arenas_) {
    const size_t free = arena.second.free.size();
    if (free > 0 && arena.second.block == bytes) {
      found = &arena;
      break;
    }
    if (free * arena.second.block == kArenaBytes && found == nullptr) found = &arena;
  }
  if (found == nullptr) {
    if (!source_.room()) DropLocked();
    std::byte* const memory = source_.pin();
    found = &*arenas_.emplace(memory, Arena()).first;
  }
  if (found->second.block != bytes) Divide(*found, bytes);
  std::byte* const block = found->second.free.back();
  found->second.free.pop_back();
  return block;
}

bool PinnedArenas::Give(void* block) {
  const std::lock_guard lock(mutex_);
  auto* const at = static_cast<std::byte*>(block);
  auto arena = arenas_.upper_bound(at);
  if (arena == arenas_.begin()) return false;
  --arena;
  if (at >= arena->first + kArenaBytes) return false;
  arena->second.free.push_back(at);
  if (keepers_ == 0) DropLocked();
  return true;
}

size_t PinnedArenas::pinned() const {
  const std::lock_guard lock(mutex_);
  return arenas_.size() * kArenaBytes;
}

}  // namespace litecache
