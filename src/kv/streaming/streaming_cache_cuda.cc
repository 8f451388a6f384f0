#include "kv/streaming/streaming_cache_cuda.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "device/recording_key.h"
#include "device/sections.h"
#include "kv/pages/device_pages_cuda.h"
#include "kv/row_store.h"
#include "kv/step/attention_buffer_cuda.h"
#include "kv/step/every_list_cuda.h"
#include "kv/step/step_block_cuda.h"
#include "kv/streaming/streaming_cache_base.h"
#include "ops/attention/attention_cuda.h"
#include "ops/rows/rows_cuda.h"

namespace litecache::kv {
namespace {

using ops::cuda::HeadState;
using ops::cuda::StepView;
using streaming::Shape;
using streaming::StreamingCacheBase;

// A head's page has the slots of policy litecache without cached ones. Of a prompt chunk, a block
// of tokens is stored, then attended: by tiles, or, if the rows' format does not allow that, as if
// the tokens were generated, each a separate sequence to the kernels, with one row and its own
// past.
class CudaStreamingCache final : public StreamingCacheBase, public RowStore {
 public:
  CudaStreamingCache(Device& device, const Shape& shape, uint64_t budget_bytes)
      : StreamingCacheBase(device, shape, budget_bytes),
        device_(device),
        block_(device),
        lists_(EveryList(device, shape.layout)),
        scratch_(device) {
    // No cached rows; the window begins behind the sink.
    const std::vector<HeadState> states(
        static_cast<size_t>(heads()), HeadState{.window_begin = static_cast<int32_t>(shape.sink)});
    states_ = device.Allocate(states.size() * sizeof(HeadState));
    device.Upload(states_.data(), states.data(), states_.size());
  }

  void Release(SequenceId id) override {
    StreamingCacheBase::Release(id);
    pages_.erase(id);
  }

  void BeginStep(const Step& step) override {
    TakePages(step);
    int64_t blocks = 0;
    for (const StepSequence& part : step.sequences) {
      if (!part.decode) blocks += (part.rows + shape_.block_tokens - 1) / shape_.block_tokens;
    }
    by_tiles_ ? block_.Begin(step.decode_rows, blocks) : block_.Begin(step.rows, 0);
    pieces_.clear();
    if (step.decode_rows > 0) AddPiece(0, step.decode_rows, nullptr);
    int64_t most = step.decode_rows, tiled = 0;
    for (const StepSequence& part : step.sequences) {
      std::byte* const* pages = UpdatePages(part.id);
      for (int64_t begin = 0; begin < part.rows; begin += shape_.block_tokens) {
        const int64_t rows = std::min(shape_.block_tokens, part.rows - begin);
        // A chunk's rows are counted from the piece's first row.
        const int64_t first = part.decode ? part.first_row : 0;
        const auto set = [&](int64_t index, int64_t row, int64_t count) {
          ops::cuda::StepSequence& entry = block_.at(index);
          entry = {.first_row = static_cast<int32_t>(first + row),
                   .rows = static_cast<int32_t>(count),
                   .past = static_cast<int32_t>(part.past + begin + row),
                   .stored = static_cast<int32_t>(part.past + begin + row)};
          entry.pages[ops::cuda::kSlots] = pages;
          entry.heads = states_.as<HeadState>();
        };
        if (by_tiles_ && !part.decode) {
          set(step.decode_rows + tiled, 0, rows);
          AddPiece(part.first_row + begin, rows, begin == 0 ? &part : nullptr, tiled++);
          continue;
        }
        for (int64_t i = 0; i < rows; ++i) set(part.first_row + begin + i, i, 1);
        if (part.decode) continue;
        AddPiece(part.first_row + begin, rows, begin == 0 ? &part : nullptr);
        most = std::max(most, rows);
      }
    }
    scratch_.Prepare(most, shape_.layout);
  }

  std::optional<uint64_t> ReplayKey(const Step&) const override {
    // The operations' arguments do not depend on the context.
    RecordingKey key;
    key.Add(block_.memory()).Add(scratch_.memory());
    for (const Piece& piece : pieces_) {
      if (piece.source != nullptr) return std::nullopt;
      key.Add(piece.first_row).Add(piece.rows).Add(piece.tiled);
    }
    return key.value();
  }

  void Attend(Stream& stream, int64_t layer, const Step&, const MatrixView& q, const MatrixView& k,
              const MatrixView& v, const ops::Softmax& softmax, const MatrixView& out) override {
    LC_CHECK(layer >= 0 && layer < shape_.layout.layers);
    if (layer == 0) block_.Send(stream);
    const int64_t kv_heads = shape_.layout.kv_heads;
    ops::cuda::HybridTables tables;
    tables.slots = Slots(layer);
    tables.cache_begin = static_cast<int32_t>(shape_.slots());
    tables.windows.recent = static_cast<int32_t>(shape_.recent);
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const Piece& piece = pieces_[i];
      Append(stream, layer, i, k, v);
      const auto rows = [&](const MatrixView& x) { return x.Rows(piece.first_row, piece.rows); };
      const SectionScope section(stream, Section::kAttention);
      if (piece.tiled >= 0) {
        ops::cuda::WindowAttention(stream, View(i), kv_heads, tables.slots, shape_.recent, rows(q),
                                   shape_.layout.q_heads, softmax, rows(out));
        continue;
      }
      ops::cuda::HybridAttention(stream, View(i), kv_heads, tables, rows(q), shape_.layout.q_heads,
                                 softmax, rows(out), scratch_.data());
    }
  }

  void StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView&,
                 const MatrixView& k, const MatrixView& v) override {
    LC_CHECK(layer >= 0 && layer < shape_.layout.layers && step.decode_rows == 0);
    if (layer == 0) block_.Send(stream);
    for (size_t i = 0; i < pieces_.size(); ++i) Append(stream, layer, i, k, v);
  }

  void EndStep(const Step& step) override {
    table_.EndStep(step);
    uint64_t read = 0;
    for (const StepSequence& part : step.sequences) {
      read += static_cast<uint64_t>(shape_.RowsRead(part));
    }
    const uint64_t row = static_cast<uint64_t>(heads()) * shape_.format.row_bytes();
    bytes_read_ += read * row;
    bytes_written_ += static_cast<uint64_t>(step.rows) * row;
  }

 private:
  // Rows of the step that are stored, then attended, together.
  struct Piece {
    int64_t first_row = 0, rows = 0;
    // For a chunk's first piece: the page whose contents are copied to the chunk's page first.
    const std::byte* source = nullptr;
    std::byte* target = nullptr;
    int64_t tiled = -1;  // index among the blocks attended by tiles
  };
  struct Pages {
    std::byte* page = nullptr;
    DevicePages lists;
  };

  int64_t heads() const { return shape_.layout.layers * shape_.layout.kv_heads; }

  void AddPiece(int64_t first_row, int64_t rows, const StepSequence* chunk, int64_t tiled = -1) {
    block_.flag(static_cast<int64_t>(pieces_.size())) = static_cast<int32_t>(rows);
    Piece piece{.first_row = first_row, .rows = rows, .tiled = tiled};
    if (chunk != nullptr) {
      piece.source = table_.Source(chunk->id);
      piece.target = table_.Target(chunk->id);
    }
    pieces_.push_back(piece);
  }

  ops::cuda::RowTable Slots(int64_t layer) const {
    return {.table = ops::cuda::kSlots,
            .lists = static_cast<int32_t>(heads()),
            .page_rows = static_cast<int32_t>(shape_.slots()),
            .format = shape_.format,
            .sink = static_cast<int32_t>(shape_.sink),
            .ring = static_cast<int32_t>(shape_.ring()),
            .list_of_head = lists_.as<int32_t>() + layer * shape_.layout.kv_heads};
  }

  // Stores a piece's rows.
  void Append(Stream& stream, int64_t layer, size_t index, const MatrixView& k,
              const MatrixView& v) {
    const Piece& piece = pieces_[index];
    if (piece.source != nullptr) {
      const uint64_t offset = static_cast<uint64_t>(layer) * shape_.layer_bytes();
      LC_CUDA(cudaMemcpyAsync(piece.target + offset, piece.source + offset, shape_.layer_bytes(),
                              cudaMemcpyDeviceToDevice, AsCuda(stream).handle()));
    }
    Mark(stream, Section::kManagement);
    ops::cuda::AppendRows(stream, View(index), shape_.layout.kv_heads, Slots(layer),
                          k.Rows(piece.first_row, piece.rows), v.Rows(piece.first_row, piece.rows));
  }

  // The page that the step writes, as lists in device memory.
  std::byte* const* UpdatePages(SequenceId id) {
    Pages& pages = pages_[id];
    std::byte* page = table_.Target(id);
    if (pages.page != page) {
      pages.lists.Update(device_, heads(), 1, 0, [&](int64_t list, int64_t) {
        return page + static_cast<uint64_t>(list) * shape_.head_bytes();
      });
      pages.page = page;
    }
    return pages.lists.device();
  }

  StepView View(size_t index) const {
    const Piece& piece = pieces_[index];
    if (piece.tiled >= 0) return block_.Prefilling(piece.tiled);
    StepView view = block_.Decoding(shape_.sink + shape_.recent);
    view.sequences += piece.first_row;
    view.count = block_.device_flags() + index;
    view.capacity = static_cast<int32_t>(piece.rows);
    return view;
  }

  Device& device_;
  std::unordered_map<SequenceId, Pages> pages_;
  const bool by_tiles_ = ops::cuda::WindowAttentionServes(shape_.format);
  StepBlock block_;  // a sequence per row, or per block of a prompt that is attended by tiles
  Buffer lists_;     // int32 [layers][kv_heads]: a head's list is its index
  Buffer states_;    // HeadState [layers][kv_heads], shared by all sequences
  AttentionBuffer scratch_;
  // State of the current step.
  std::vector<Piece> pieces_;
};

}  // namespace

std::unique_ptr<Cache> CreateCudaStreamingCache(Device& device, const Shape& shape,
                                                uint64_t budget_bytes) {
  LC_CHECK(device.type() == DeviceType::kCuda);
  return std::make_unique<CudaStreamingCache>(device, shape, budget_bytes);
}

}  // namespace litecache::kv
