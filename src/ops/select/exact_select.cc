#include "ops/select/exact_select.h"

#include "device/cpu/cpu_device.h"
#include "ops/select/select_cpu.h"
#include "ops/select/selection_check.h"

namespace litecache::ops {

void ExactSelect(Stream& stream, int64_t group, std::span<ExactSelectWork> work) {
  LC_CHECK(group >= 1);
  for (const ExactSelectWork& w : work) {
    CheckSelection(w.selection);
    LC_CHECK(w.rows.page_tokens >= 1 && w.rows.format.head_dim >= 1 && w.scale > 0);
  }
  cpu::ExactSelect(AsCpu(stream).pool(), group, work);
}

}  // namespace litecache::ops
