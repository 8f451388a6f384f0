#include "kv/offload/link_cpu.h"

#include <chrono>

#include "base/error.h"

namespace litecache::kv::offload {
namespace {

// A piece is at most one head's rows of a sequence: fractions of a second on any machine.
constexpr std::chrono::seconds kDeadline{300};

}  // namespace

Link::Link() : thread_([this] { Run(); }) {}

Link::~Link() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    transfers_ = nullptr;
  }
  wake_.notify_all();
  thread_.join();
}

void Link::Start(const std::vector<Transfer>* transfers) {
  Stop();
  {
    const std::lock_guard lock(mutex_);
    transfers_ = transfers;
    next_ = pieces_ = released_ = 0;
  }
  wake_.notify_one();
}

void Link::Stop() {
  std::unique_lock lock(mutex_);
  transfers_ = nullptr;
  arrived_.wait(lock, [this] { return !busy_; });
}

void Link::Await(size_t transfer, size_t pieces) {
  std::unique_lock lock(mutex_);
  LC_CHECK(transfers_ != nullptr && transfer < transfers_->size(), "no transfer {}", transfer);
  const auto there = [&] { return next_ > transfer || (next_ == transfer && pieces_ >= pieces); };
  if (!arrived_.wait_for(lock, kDeadline, there)) {
    throw Error(fmt::format("KV cache: piece {} of transfer {} of {} has not arrived after {} s",
                            pieces, transfer, transfers_->size(), kDeadline.count()));
  }
}

void Link::Release(size_t transfer) {
  {
    const std::lock_guard lock(mutex_);
    LC_CHECK(transfer == released_, "transfer {} is released, {} was next", transfer, released_);
    ++released_;
  }
  wake_.notify_one();
}

void Link::Run() {
  std::unique_lock lock(mutex_);
  const auto ready = [this] {
    return transfers_ != nullptr && next_ < transfers_->size() && next_ < released_ + kBuffers;
  };
  for (;;) {
    wake_.wait(lock, [&] { return ending_ || ready(); });
    if (ending_) return;
    const std::vector<ops::ConvertWork>& pieces = (*transfers_)[next_].pieces;
    if (pieces_ < pieces.size()) {
      const ops::ConvertWork piece = pieces[pieces_];
      busy_ = true;
      lock.unlock();
      ops::CopyRows(piece);
      lock.lock();
      busy_ = false;
      // Stop() may have ended this step, but it waits for this piece, so no other step has begun.
      if (transfers_ != nullptr) ++pieces_;
    }
    if (transfers_ != nullptr && pieces_ == (*transfers_)[next_].pieces.size()) {
      ++next_;
      pieces_ = 0;
    }
    arrived_.notify_all();
  }
}

}  // namespace litecache::kv::offload
