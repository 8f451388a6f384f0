#include "device/cuda/recordings.h"

namespace litecache {

Recordings::Step* Recordings::Use(uint64_t key) {
  if (const auto found = of_key_.find(key); found != of_key_.end()) {
    steps_.splice(steps_.begin(), steps_, found->second);
    return &steps_.front();
  }
  MakeRoom();
  steps_.push_front({.key = key});
  of_key_[key] = steps_.begin();
  return nullptr;
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
  while (!steps_.empty()) Drop(steps_.begin());
}

}  // namespace litecache
