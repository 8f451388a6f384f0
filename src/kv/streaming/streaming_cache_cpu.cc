// Policy `streaming`: StreamingLLM, attention over the first and the last tokens.

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"
#include "kv/cache.h"
#include "kv/cache_plan.h"
#include "kv/step/attended_rows_cpu.h"
#include "kv/step/attention_scratch_cuda.h"
#include "kv/streaming/shape.h"
#include "kv/streaming/streaming_cache_base.h"
#include "kv/streaming/streaming_cache_cuda.h"
#include "kv/with_shape.h"
#include "ops/attention/attention.h"
#include "ops/common/available_cuda.h"

namespace litecache::kv {
namespace {

using streaming::Shape;
using streaming::SlotRange;
using streaming::StreamingCacheBase;

class StreamingCache final : public StreamingCacheBase {
 public:
  StreamingCache(Device& device, const Shape& shape, uint64_t budget_bytes)
      : StreamingCacheBase(device, shape, budget_bytes) {}

  void BeginStep(const Step& step) override { TakePages(step); }

  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out) override {
    LC_CHECK(layer >= 0 && layer < shape_.layout.layers);
    rows_.clear();
    for (const StepSequence& sequence : step.sequences) {
      if (!sequence.decode) continue;
      Append(layer, sequence, 0, 1, k, v);
      rows_.push_back({&sequence, 0});
    }
    // First all sequences' decode rows together, then prompt chunks block by block.
    AttendRows(stream, layer, q, softmax, out);
    for (const StepSequence& sequence : step.sequences) {
      if (!sequence.decode) AttendChunk(stream, layer, sequence, q, k, v, softmax, out);
    }
    const auto heads = static_cast<uint64_t>(shape_.layout.kv_heads);
    uint64_t read = 0;
    for (const StepSequence& sequence : step.sequences) {
      read += static_cast<uint64_t>(shape_.RowsRead(sequence));
    }
    bytes_read_ += read * heads * shape_.format.row_bytes();
    bytes_written_ += static_cast<uint64_t>(step.rows) * heads * shape_.format.row_bytes();
  }

  void EndStep(const Step& step) override { table_.EndStep(step); }

 private:
  struct Row {
    const StepSequence* sequence = nullptr;
    int64_t index = 0;  // among the sequence's rows of the step
  };

  // Offset of a head's slots in the page; they are used as a page of their own.
  uint64_t HeadOffset(int64_t layer, int64_t head) const {
    return static_cast<uint64_t>(layer) * shape_.layer_bytes() +
           static_cast<uint64_t>(head) * shape_.head_bytes();
  }

  void Append(int64_t layer, const StepSequence& sequence, int64_t begin, int64_t end,
              const MatrixView& k, const MatrixView& v) {
    const int64_t d = shape_.layout.head_dim;
    const ops::RowFormat f32{ops::RowEncoding::kF32, d};
    row_.resize(static_cast<size_t>(2 * d));
    std::byte* page = table_.Target(sequence.id);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = sequence.first_row + i;
      const auto offset = static_cast<uint64_t>(shape_.Slot(sequence.past + i)) *
                          static_cast<uint64_t>(shape_.format.row_bytes());
      for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
        std::memcpy(row_.data(), k.Row<float>(row) + head * d, static_cast<size_t>(d) * 4);
        std::memcpy(row_.data() + d, v.Row<float>(row) + head * d, static_cast<size_t>(d) * 4);
        ops::ConvertRow(f32, reinterpret_cast<const std::byte*>(row_.data()), shape_.format,
                        page + HeadOffset(layer, head) + offset);
      }
    }
  }

  void AttendChunk(Stream& stream, int64_t layer, const StepSequence& sequence, const MatrixView& q,
                   const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
                   const MatrixView& out) {
    if (const std::byte* source = table_.Source(sequence.id)) {
      const uint64_t offset = HeadOffset(layer, 0);
      std::memcpy(table_.Target(sequence.id) + offset, source + offset, shape_.layer_bytes());
    }
    for (int64_t begin = 0; begin < sequence.rows; begin += shape_.block_tokens) {
      const int64_t end = std::min(begin + shape_.block_tokens, sequence.rows);
      Append(layer, sequence, begin, end, k, v);
      rows_.clear();
      for (int64_t i = begin; i < end; ++i) rows_.push_back({&sequence, i});
      AttendRows(stream, layer, q, softmax, out);
    }
  }

  // Attends the queries of rows_, each over its visible rows.
  void AttendRows(Stream& stream, int64_t layer, const MatrixView& q, const ops::Softmax& softmax,
                  const MatrixView& out) {
    if (rows_.empty()) return;
    const Layout& layout = shape_.layout;
    const int64_t group = layout.q_heads / layout.kv_heads;
    const size_t count = rows_.size() * static_cast<size_t>(layout.kv_heads);
    pages_.resize(count);
    attended_.Clear();
    for (const Row& row : rows_) {
      const int64_t at = row.sequence->first_row + row.index;
      const auto visible = shape_.Visible(row.sequence->past + row.index);
      for (int64_t head = 0; head < layout.kv_heads; ++head) {
        std::byte*& page = pages_[attended_.heads()];
        page = table_.Target(row.sequence->id) + HeadOffset(layer, head);
        attended_.Begin(head * group, q.Row<float>(at) + head * group * layout.head_dim,
                        out.Row<float>(at) + head * group * layout.head_dim);
        for (const SlotRange& range : visible) {
          attended_.Add({&page, shape_.slots(), shape_.format}, range.begin, range.count);
        }
      }
    }
    attended_.Attend(stream, shape_.format, group, softmax);
  }

  // Scratch, members so that its memory is reused by every step.
  std::vector<float> row_;
  std::vector<Row> rows_;
  std::vector<std::byte*> pages_;
  AttendedRows attended_;
};

class StreamingPlan final : public WithShape<CachePlan, Shape> {
 public:
  StreamingPlan(const Shape& shape, DeviceType device) : WithShape(shape), device_(device) {}

  uint64_t ScratchBytes(int64_t sequences, int64_t, int) const override {
    const Layout& layout = shape_.layout;
    if constexpr (ops::cuda::kAvailable) {
      if (device_ == DeviceType::kCuda) {  // each token of a block is a sequence to the kernels
        return CudaAttentionScratchBytes(layout, std::max(sequences, shape_.block_tokens));
      }
    }
    return ops::AttentionScratchBytes(layout.kv_heads, layout.q_heads / layout.kv_heads,
                                      layout.head_dim, sequences + shape_.block_tokens);
  }
  std::string DeviceHolds() const override {
    return fmt::format("the first {} and the last {} tokens' rows, whatever the context",
                       shape_.sink, shape_.recent);
  }
  std::vector<std::string> Notes() const override {
    return {fmt::format(
        "tokens attend only the first {} and the last {} tokens; all others are dropped",
        shape_.sink, shape_.recent)};
  }
  std::unique_ptr<Cache> Create(Device& device, const TierBytes& budget) const override {
    if constexpr (ops::cuda::kAvailable) {
      if (device.type() == DeviceType::kCuda) {
        return CreateCudaStreamingCache(device, shape_, budget.device);
      }
    }
    return std::make_unique<StreamingCache>(device, shape_, budget.device);
  }

 private:
  DeviceType device_;
};

}  // namespace

std::unique_ptr<CachePlan> PlanStreamingCache(const Layout& layout, const KvOptions& options,
                                              DeviceType device) {
  return std::make_unique<StreamingPlan>(Shape(layout, options, device), device);
}

}  // namespace litecache::kv
