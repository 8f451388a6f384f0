#include "engine/machine_share.h"

#include <algorithm>

#include "base/thread_pool.h"
#include "parallel/process_group.h"

namespace litecache::engine {

EngineOptions ShareOfMachine(const EngineOptions& options, int index, int count) {
  EngineOptions own = options;
  own.device = parallel::DeviceOfRank(options.device, index);
  if (own.threads == 0) own.threads = std::max(1, AvailableCores() / count);
  own.memory /= static_cast<uint64_t>(count);
  own.kv.host_memory /= static_cast<uint64_t>(count);
  own.show_progress = options.show_progress && index == 0;
  return own;
}

}  // namespace litecache::engine
