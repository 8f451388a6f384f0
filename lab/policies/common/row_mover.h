// Moves rows between the tiers on a separate thread, in parallel with the computation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/background_threads.h"
#include "device/cpu/cpu_device.h"
#include "lab/namespaces.h"
#include "ops/rows/move_rows.h"

namespace litecache::lab {

// Transfers run in the order in which they are started.
class RowMover {
 public:
  RowMover() : stream_(device_.CreateStream()) {}

  // Moves the rows; `work` and the memory it points to must not change until the group has been
  // waited for.
  void Move(const std::shared_ptr<TaskGroup>& group, const std::vector<ops::MoveWork>* work) {
    thread_.Submit(group, [this, work] { ops::MoveRows(*stream_, *work); });
  }

 private:
  CpuDevice device_{1};
  std::unique_ptr<Stream> stream_;
  BackgroundThreads thread_{1};
};

}  // namespace litecache::lab
