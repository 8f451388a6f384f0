// How many open requests each client has.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace litecache::server {

// Thread-safe; must outlive what Enter() returns.
class Clients {
 public:
  // Counts a request of this client until the result is destroyed.
  std::shared_ptr<void> Enter(uint64_t client) {
    const std::lock_guard lock(mutex_);
    ++open_[client];
    return std::shared_ptr<void>(
        this, [client](void* self) { static_cast<Clients*>(self)->Leave(client); });
  }
  int64_t Open(uint64_t client) const {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(client);
    return found == open_.end() ? 0 : found->second;
  }
  // Number of clients with open requests.
  int64_t count() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(open_.size());
  }

 private:
  void Leave(uint64_t client) {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(client);
    if (--found->second == 0) open_.erase(found);
  }

  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, int64_t> open_;
};

}  // namespace litecache::server
