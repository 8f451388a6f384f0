// Memory that requests share beside the engine's: bodies on their way in, answers on their way out.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace litecache::server {

// Thread-safe; outlives its shares.
class MemoryBudget {
 public:
  explicit MemoryBudget(int64_t limit) : limit_(limit) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;
  int64_t limit() const { return limit_; }
  int64_t used() const { return used_; }

  // Bytes of one holder, given back when it is destroyed. An empty one holds none.
  class Share {
   public:
    Share() = default;
    explicit Share(MemoryBudget* budget) : budget_(budget) {}
    ~Share() {
      if (budget_ != nullptr) budget_->used_ -= bytes_;
    }
    Share(Share&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    // False, and nothing has changed, where the budget does not hold that much more.
    [[nodiscard]] bool Grow(int64_t bytes) {
      if ((budget_->used_ += bytes) > budget_->limit_) {
        budget_->used_ -= bytes;
        return false;
      }
      bytes_ += bytes;
      return true;
    }

   private:
    MemoryBudget* budget_ = nullptr;
    int64_t bytes_ = 0;
  };

 private:
  const int64_t limit_;
  std::atomic<int64_t> used_{0};
};

}  // namespace litecache::server
