// Rows that move between the tiers on a thread of their own, while the one that computes goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/background_threads.h"
#include "device/cpu/cpu_device.h"
#include "ops/rows/move_rows.h"

namespace litecache::kv {

// Transfers happen in the order they are started.
class RowMover {
 public:
  RowMover() : stream_(device_.CreateStream()) {}

  // Moves the rows; `work` and what it points to must stay as they are until the group is waited
  // for.
  void Move(const std::shared_ptr<TaskGroup>& group, const std::vector<ops::MoveWork>* work) {
    thread_.Submit(group, [this, work] { ops::MoveRows(*stream_, *work); });
  }

 private:
  CpuDevice device_{1};
  std::unique_ptr<Stream> stream_;
  BackgroundThreads thread_{1};
};

}  // namespace litecache::kv
