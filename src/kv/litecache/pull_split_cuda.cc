#include "kv/litecache/pull_split_cuda.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/logging.h"
#include "kv/transfer/transfer_engine_cuda.h"

namespace litecache::kv {
namespace {

// SMs reserved for pulls, which reach the link's rate on half as many; at most one in
// kLeastSmsForOne of the GPU's, since products lose them.
constexpr int kPullSms = 8;
constexpr int kLeastSmsForOne = 12;

// The value of LITECACHE_PULL_SMS; -1 if it is not set.
int PullSmsAsked() {
  const char* value = std::getenv("LITECACHE_PULL_SMS");
  return value != nullptr ? std::max(std::atoi(value), 0) : -1;
}

}  // namespace

const SmSplit* SplitOfPulls(const CudaDevice& device, const KvOptions& options, int64_t ahead) {
  // Other engines' kernels wait more for the host's threads than for the link.
  if (ahead == 0 || TransferOptionsOf(options).engine != "gpu-pull") return nullptr;
  const int asked = PullSmsAsked();
  const int sms = asked >= 0 ? asked : std::min(kPullSms, device.sm_count() / kLeastSmsForOne);
  if (sms == 0) return nullptr;
  std::string reason;
  const SmSplit* split = SmSplit::Get(device.index(), sms, &reason);
  if (split != nullptr) {
    LogInfo("pulls have {} of {} SMs to themselves", split->few(), device.sm_count());
  } else {
    LogInfo("pulls share SMs with the rest of a step: {}", reason);
  }
  return split;
}

bool PullsAlwaysApart() { return PullSmsAsked() > 0; }

}  // namespace litecache::kv
