// Which sequences a failed transfer may have corrupted: those of the steps that have issued
// operations since the device was last waited for.
#pragma once

#include <vector>

#include "kv/cache.h"

namespace litecache::kv {

class UncheckedSteps {
 public:
  void Begin(const Step& step) {
    // A step that has been waited for since it last issued operations had no fault.
    if (!checked_) before_.insert(before_.end(), running_.begin(), running_.end());
    checked_ = false;
    running_.clear();
    for (const StepSequence& part : step.sequences) running_.push_back(part.id);
  }
  // Call when the current step issues more operations.
  void Issue() { checked_ = false; }
  // The sequences of all unchecked steps.
  std::vector<SequenceId> Sequences() const {
    std::vector<SequenceId> all = before_;
    all.insert(all.end(), running_.begin(), running_.end());
    return all;
  }
  // Call after waiting for everything that was issued.
  void Checked() {
    before_.clear();
    checked_ = true;
  }

 private:
  std::vector<SequenceId> running_, before_;
  bool checked_ = true;  // whether running_ has been waited for
};

}  // namespace litecache::kv
