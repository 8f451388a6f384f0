#include "ops/attention/row_attention.h"

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "ops/attention/row_attention_cpu.h"

namespace litecache::ops {

void RowAttention(Stream& stream, const RowFormat& format, int64_t group,
                  std::span<const RowAttentionHead> heads, const Softmax& softmax) {
  LC_CHECK(!format.quantized(), "rows of {} have to be expanded first", Name(format.encoding));
  LC_CHECK(format.head_dim >= 1 && group >= 1, "head_dim {}, group {}", format.head_dim, group);
  for (const RowAttentionHead& head : heads) {
    LC_CHECK(head.q != nullptr && head.out != nullptr);
    LC_CHECK(head.state_count >= 0 && (head.state_count == 0 || head.states != nullptr));
    int64_t rows = 0;
    for (const RowPart& part : head.parts) {
      LC_CHECK(part.count >= 0 && part.begin >= 0, "{} rows from {}", part.count, part.begin);
      LC_CHECK(part.count == 0 ||
                   (part.rows.format.encoding == format.encoding &&
                    part.rows.format.head_dim == format.head_dim && part.rows.page_tokens >= 1),
               "a part's rows are {} of {}", Name(part.rows.format.encoding),
               part.rows.format.head_dim);
      rows += part.count;
    }
    LC_CHECK(rows >= 1, "a head without rows");
  }
  cpu::RowAttention(AsCpu(stream).pool(), format, group, heads, softmax);
}

}  // namespace litecache::ops
