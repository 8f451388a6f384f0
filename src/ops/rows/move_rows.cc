#include "ops/rows/move_rows.h"

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "ops/rows/move_rows_cpu.h"

namespace litecache::ops {

void MoveRows(Stream& stream, std::span<const MoveWork> work) {
  for (const MoveWork& w : work) {
    LC_CHECK(w.source.format.head_dim == w.target.format.head_dim && w.source.format.head_dim >= 1,
             "head_dim {} and {}", w.source.format.head_dim, w.target.format.head_dim);
    LC_CHECK(w.source.page_tokens >= 1 && w.target.page_tokens >= 1);
    LC_CHECK(w.count >= 0 && (w.count == 0 || (w.positions != nullptr && w.slots != nullptr)));
  }
  cpu::MoveRows(AsCpu(stream).pool(), work);
}

}  // namespace litecache::ops
