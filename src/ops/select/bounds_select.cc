#include "ops/select/bounds_select.h"

#include "device/cpu/cpu_device.h"
#include "ops/select/select_cpu.h"
#include "ops/select/selection_check.h"

namespace litecache::ops {

void BoundsEncode(Stream& stream, const BoundsFormat& format,
                  std::span<const BoundsEncodeWork> work) {
  LC_CHECK(format.head_dim >= 1);
  for (const BoundsEncodeWork& w : work) {
    CheckEncode(w.begin, w.count, w.metadata, BoundsFormat::kGroupTokens);
  }
  cpu::BoundsEncode(AsCpu(stream).pool(), format, work);
}

void BoundsSelect(Stream& stream, const BoundsFormat& format, int64_t group,
                  std::span<BoundsSelectWork> work) {
  LC_CHECK(format.head_dim >= 1 && group >= 1);
  for (const BoundsSelectWork& w : work) {
    CheckMetadata(w.metadata, BoundsFormat::kGroupTokens);
    CheckSelection(w.selection);
  }
  cpu::BoundsSelect(AsCpu(stream).pool(), format, group, work);
}

}  // namespace litecache::ops
