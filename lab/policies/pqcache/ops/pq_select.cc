#include "lab/policies/pqcache/ops/pq_select.h"

#include "device/cpu/cpu_device.h"
#include "lab/policies/pqcache/ops/pq_select_cpu.h"
#include "ops/select/selection_check.h"

namespace litecache::lab::ops {
namespace {

void CheckFormat(const PqFormat& format, int64_t head_dim) {
  LC_CHECK(format.bits >= 1 && format.bits <= 8 && format.subspaces >= 1 &&
               head_dim % format.subspaces == 0,
           "{} parts of {} bits of {} values", format.subspaces, format.bits, head_dim);
}

}  // namespace

void PqEncode(Stream& stream, const PqFormat& format, int64_t head_dim,
              std::span<const PqEncodeWork> work) {
  CheckFormat(format, head_dim);
  for (const PqEncodeWork& w : work) {
    CheckEncode(w.begin, w.count, w.metadata, PqFormat::kBlockTokens);
  }
  cpu::PqEncode(AsCpu(stream).pool(), format, head_dim, work);
}

void PqSelect(Stream& stream, const PqFormat& format, int64_t group, int64_t head_dim,
              std::span<PqSelectWork> work) {
  CheckFormat(format, head_dim);
  LC_CHECK(group >= 1);
  for (const PqSelectWork& w : work) {
    CheckMetadata(w.metadata, PqFormat::kBlockTokens);
    CheckSelection(w.selection);
    LC_CHECK(w.scale > 0);
  }
  cpu::PqSelect(AsCpu(stream).pool(), format, group, head_dim, work);
}

}  // namespace litecache::lab::ops
