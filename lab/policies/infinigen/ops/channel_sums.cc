#include "lab/policies/infinigen/ops/channel_sums.h"

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "lab/policies/infinigen/ops/infinigen_cpu.h"

namespace litecache::lab::ops {

void AddChannelSums(Stream& stream, int64_t head_dim, int64_t width,
                    std::span<const ChannelSumsWork> work) {
  LC_CHECK(head_dim >= 1 && width >= 16 && width % 16 == 0);
  cpu::AddChannelSums(AsCpu(stream).pool(), head_dim, width, work);
}

}  // namespace litecache::lab::ops
