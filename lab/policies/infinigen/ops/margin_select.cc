#include "lab/policies/infinigen/ops/margin_select.h"

#include "device/cpu/cpu_device.h"
#include "lab/policies/infinigen/ops/infinigen_cpu.h"
#include "ops/select/selection_check.h"

namespace litecache::lab::ops {

void MarginScore(Stream& stream, const ProjectionFormat& format, int64_t group, int64_t head_dim,
                 std::span<MarginScoreWork> work) {
  LC_CHECK(format.rank >= 1 && head_dim >= 1 && group >= 1);
  for (const MarginScoreWork& w : work) {
    CheckMetadata(w.metadata, ProjectionFormat::kBlockTokens);
    LC_CHECK(w.begin >= 0 && w.begin < w.end && w.scale > 0 && w.alpha >= 0);
  }
  cpu::MarginScore(AsCpu(stream).pool(), format, group, head_dim, work);
}

void SelectTopRows(Stream& stream, std::span<TopRowsWork> work) {
  for (const TopRowsWork& w : work) CheckSelection(w.selection);
  cpu::SelectTopRows(AsCpu(stream).pool(), work);
}

}  // namespace litecache::lab::ops
