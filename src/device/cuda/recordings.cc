#include "device/cuda/recordings.h"

#include <algorithm>
#include <utility>

namespace litecache {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

}  // namespace

Recordings::Step* Recordings::Use(uint64_t key) {
  if (const auto found = of_key_.find(key); found != of_key_.end()) {
    steps_.splice(steps_.begin(), steps_, found->second);
    return &steps_.front();
  }
  pending_ = nullptr;
  MakeRoom();
  steps_.push_front({.key = key});
  of_key_[key] = steps_.begin();
  return nullptr;
}

void Recordings::Launched(Step& step, std::chrono::steady_clock::time_point begun) {
  step.launch = ++launched_;
  if (pending_ != nullptr) return;
  pending_ = &step;
  begun_ = begun;
}

void Recordings::Finished(uint64_t launches, std::optional<double> seconds) {
  finished_ = launches;
  Step* const step = std::exchange(pending_, nullptr);
  if (step == nullptr || !seconds) return;
  std::rotate(step->seconds.begin(), step->seconds.end() - 1, step->seconds.end());
  step->seconds.front() = *seconds;
}

std::optional<double> Recordings::Remaining() const {
  if (pending_ == nullptr) return std::nullopt;
  double shortest = 0;
  for (const double seconds : pending_->seconds) {
    if (seconds > 0 && (shortest == 0 || seconds < shortest)) shortest = seconds;
  }
  if (shortest == 0) return std::nullopt;
  return std::max(0.0, shortest - SecondsSince(begun_));
}

void Recordings::MakeRoom() {
  for (auto step = steps_.end(); steps_.size() >= limit_ && step != steps_.begin();) {
    --step;
    if (step->launch > finished_) continue;
    const auto oldest = step++;
    Drop(oldest);
  }
}

void Recordings::Drop(std::list<Step>::iterator step) {
  if (step->graph != nullptr) destroy_(step->graph);
  of_key_.erase(step->key);
  steps_.erase(step);
}

void Recordings::Clear() {
  pending_ = nullptr;
  while (!steps_.empty()) Drop(steps_.begin());
}

}  // namespace litecache
