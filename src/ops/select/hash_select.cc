#include "ops/select/hash_select.h"

#include "device/cpu/cpu_device.h"
#include "ops/select/hash_cpu.h"
#include "ops/select/select_cpu.h"
#include "ops/select/selection_check.h"

namespace litecache::ops {
namespace {

void Check(const HashFormat& format, int64_t head_dim) {
  LC_CHECK(format.bits >= 32 && format.bits % 32 == 0 &&
               format.words() <= cpu::HashQuery::kMaxWords && head_dim >= 1,
           "{} bits, head_dim {}", format.bits, head_dim);
}

}  // namespace

void HashEncode(Stream& stream, const HashFormat& format, int64_t head_dim,
                std::span<const HashEncodeWork> work) {
  Check(format, head_dim);
  for (const HashEncodeWork& w : work) {
    CheckEncode(w.begin, w.count, w.metadata, HashFormat::kBlockTokens);
  }
  cpu::HashEncode(AsCpu(stream).pool(), format, head_dim, work);
}

void HashSelect(Stream& stream, const HashFormat& format, HashScore score, int64_t group,
                int64_t head_dim, std::span<HashSelectWork> work) {
  Check(format, head_dim);
  LC_CHECK(score == HashScore::kSum || format.norms, "a softmax of hashes without norms");
  LC_CHECK(group >= 1 && group < (1 << cpu::HashQuery::kMaxPlanes), "{} query heads", group);
  for (const HashSelectWork& w : work) {
    CheckMetadata(w.metadata, HashFormat::kBlockTokens);
    CheckSelection(w.selection);
  }
  cpu::HashSelect(AsCpu(stream).pool(), format, score, group, head_dim, work);
}

}  // namespace litecache::ops
