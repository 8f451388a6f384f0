// Memory that requests share outside the engine: bodies being received, answers being sent.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace litecache::server {

// Thread-safe. Shares may outlive it: requests may end later than the server that accepted them.
class MemoryBudget {
 public:
  explicit MemoryBudget(int64_t limit) : limit_(limit) {}
  int64_t limit() const { return limit_; }
  int64_t used() const { return *used_; }

  // Bytes of one holder, returned when it is destroyed.
  class Share {
   public:
    Share() = default;
    explicit Share(const MemoryBudget& budget) : limit_(budget.limit_), used_(budget.used_) {}
    ~Share() {
      if (used_ != nullptr) *used_ -= bytes_;
    }
    Share(Share&& other) noexcept { Swap(other); }
    Share& operator=(Share&& other) noexcept {
      Share moved(std::move(other));
      Swap(moved);
      return *this;
    }
    // Returns false and changes nothing if the budget does not have that much left. Not callable on
    // an empty share.
    [[nodiscard]] bool Grow(int64_t bytes) {
      if ((*used_ += bytes) > limit_) {
        *used_ -= bytes;
        return false;
      }
      bytes_ += bytes;
      return true;
    }

   private:
    void Swap(Share& other) noexcept {
      std::swap(limit_, other.limit_);
      std::swap(used_, other.used_);
      std::swap(bytes_, other.bytes_);
    }
    int64_t limit_ = 0;
    std::shared_ptr<std::atomic<int64_t>> used_;  // null: empty
    int64_t bytes_ = 0;
  };

 private:
  int64_t limit_;
  std::shared_ptr<std::atomic<int64_t>> used_ = std::make_shared<std::atomic<int64_t>>(0);
};

}  // namespace litecache::server
