#include "ops/select/projection_select.h"

#include "device/cpu/cpu_device.h"
#include "ops/select/select_cpu.h"
#include "ops/select/selection_check.h"

namespace litecache::ops {

void ProjectionEncode(Stream& stream, const ProjectionFormat& format, int64_t head_dim,
                      std::span<const ProjectionEncodeWork> work) {
  LC_CHECK(format.rank >= 1 && head_dim >= 1);
  for (const ProjectionEncodeWork& w : work) {
    CheckEncode(w.begin, w.count, w.metadata, ProjectionFormat::kBlockTokens);
  }
  cpu::ProjectionEncode(AsCpu(stream).pool(), format, head_dim, work);
}

void ProjectionSelect(Stream& stream, const ProjectionFormat& format, int64_t group,
                      int64_t head_dim, std::span<ProjectionSelectWork> work) {
  LC_CHECK(format.rank >= 1 && head_dim >= 1 && group >= 1);
  for (const ProjectionSelectWork& w : work) {
    CheckMetadata(w.metadata, ProjectionFormat::kBlockTokens);
    CheckSelection(w.selection);
    LC_CHECK(w.scale > 0);
  }
  cpu::ProjectionSelect(AsCpu(stream).pool(), format, group, head_dim, work);
}

}  // namespace litecache::ops
