// Pinned memory in large pieces that outlive what is made in them.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

namespace litecache {

// Arenas of kArenaBytes, each divided into blocks of one size while any of them is in use; what is
// free altogether serves any size. Thread-safe.
class PinnedArenas {
 public:
  static constexpr size_t kArenaBytes = size_t{256} << 20;
  // Smaller blocks are few, and would take an arena for each of their sizes.
  static constexpr size_t kLeastBlock = size_t{4} << 20;

  struct Source {
    // kArenaBytes of memory; throws where there is none.
    std::function<std::byte*()> pin;
    std::function<void(std::byte*)> unpin;
    // Whether an arena can be pinned beside what else needs memory.
    std::function<bool()> room;
  };
  explicit PinnedArenas(Source source) : source_(std::move(source)) {}

  // While somebody keeps, blocks come from arenas, and arenas stay.
  void Keep();
  void Forget();  // once for each Keep(); free arenas are unpinned with the last
  void Drop();    // unpins free arenas

  // Null where nobody keeps, or `bytes` does not divide an arena.
  void* Take(size_t bytes);
  // False: it is no block of an arena.
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
