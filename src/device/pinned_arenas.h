// Pinned memory in large arenas that outlive the blocks allocated from them.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

namespace litecache {

// Arenas of kArenaBytes, each divided into blocks of one size while any block is in use; an arena
// without blocks in use can serve any size. Thread-safe.
class PinnedArenas {
 public:
  static constexpr size_t kArenaBytes = size_t{256} << 20;
  // Smaller blocks are rare, and each of their sizes would take an arena of its own.
  static constexpr size_t kLeastBlock = size_t{4} << 20;

  struct Source {
    // Pins kArenaBytes of memory; throws if there is not enough.
    std::function<std::byte*()> pin;
    std::function<void(std::byte*)> unpin;
    // Whether another arena can be pinned besides everything else that needs memory.
    std::function<bool()> room;
  };
  explicit PinnedArenas(Source source) : source_(std::move(source)) {}

  // Between Keep() and Forget() blocks come from arenas, and arenas stay pinned.
  void Keep();
  void Forget();  // once for each Keep(); the last one unpins free arenas
  void Drop();    // unpins free arenas

  // Null if not between Keep() and Forget(), or if `bytes` does not divide an arena.
  void* Take(size_t bytes);
  // Returns a block; false if it belongs to no arena.
  bool Give(void* block);

  size_t pinned() const;  // bytes of all arenas

 private:
  struct Arena {
    size_t block = 0;  // bytes
    std::vector<std::byte*> free;
  };
  using Arenas = std::map<std::byte*, Arena>;

  static void Divide(Arenas::value_type& arena, size_t bytes);
  void DropLocked();

  Source source_;
  mutable std::mutex mutex_;
  int keepers_ = 0;
  Arenas arenas_;
};

}  // namespace litecache
