// Streams beside the step's own: rows and inputs that arrive, rows that are recomputed, rows that
// are stored, inputs that are stored. Each layer's transfer goes to buffer layer % 2, for all
// sequences of the step together: while a layer attends, the next one's rows travel.
//
// A step's copies are issued one by one, not replayed: their sizes change with every token, and a
// graph of them would be built anew whenever a sequence begins a page. The host issues them a layer
// ahead of the GPU, which costs it microseconds a page that takes 40 to travel.

#include "kv/cuda/offload_cache.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cuda/branch.h"
#include "device/cuda/check.h"
#include "device/cuda/copy_batch.h"
#include "device/cuda/cuda_device.h"
#include "device/sections.h"
#include "kv/cuda/device_pages.h"
#include "kv/cuda/step_block.h"
#include "kv/page_pool.h"
#include "kv/pool_stats.h"
#include "kv/sequence_table.h"
#include "kv/step_check.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/inputs.h"
#include "ops/cuda/rows.h"

namespace litecache::kv {
namespace {

using offload::Recompute;
using offload::Shape;
using ops::cuda::RowRange;
using ops::cuda::RowTable;
using ops::cuda::StepView;
using ops::cuda::TableId;

constexpr size_t kBuffers = 2;
// Tables of this cache under the names that a step's sequences have for them. Of the step's
// sequences: rows as attention reads them, and as they arrive where that is another format.
constexpr TableId kRows[kBuffers] = {ops::cuda::kSlots, ops::cuda::kLabels};
constexpr TableId kArrived[kBuffers] = {ops::cuda::kMetadata, ops::cuda::kStaging};
// Of the inputs' sequences: inputs on the device and on the host.
constexpr const TableId (&kStagedInputs)[kBuffers] = kArrived;
constexpr TableId kHostInputs = ops::cuda::kStore;

// Enough for several threads to touch: the store is gigabytes.
constexpr uint64_t kHostSlab = uint64_t{64} << 20;
// Pieces of a layer's inputs, of a step: more tokens make them longer.
constexpr int64_t kMaxPieces = 64;
// Marks of the copying stream: a buffer's rows are there, a piece of its inputs is there.
constexpr int RowsMark(size_t buffer) { return static_cast<int>(buffer); }
constexpr int PieceMark(size_t buffer, size_t piece) {
  return static_cast<int>(kBuffers + buffer * kMaxPieces + piece);
}

class CudaOffloadCache final : public Cache {
 public:
  CudaOffloadCache(CudaDevice& device, std::string policy, const Shape& shape,
                   std::optional<Recompute> recompute, const TierBytes& budget);
  ~CudaOffloadCache() override;

  std::string_view policy() const override { return policy_; }
  const Layout& layout() const override { return shape_.layout; }
  TierBytes BytesFor(int64_t tokens) const override {
    return shape_.BytesFor(tokens, LargestSplit(tokens));
  }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return shape_.ForkBytesFor(shared, tokens, LargestSplit(tokens));
  }

  SequenceId Create() override;
  SequenceId Fork(SequenceId parent) override;
  void Release(SequenceId id) override;
  int64_t Length(SequenceId id) const override { return store_.Length(id); }

  void BeginStep(const Step& step) override;
  bool WantsInputs() const override { return shape_.keeps_inputs; }
  void KeepInputs(Stream& stream, int64_t layer, const Step& step, const MatrixView& x,
                  KeyValueProjection* projection) override;
  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, float scale,
              const MatrixView& out) override;
  void EndStep(const Step& step) override;

  Stats GetStats() const override;

 private:
  // Pages of one kind in one buffer.
  struct Staged {
    std::vector<PageId> ids;
    DevicePages pages;
  };
  struct Sequence {
    DevicePages resident, store, host_inputs;
    Staged rows[kBuffers], arrived[kBuffers], inputs[kBuffers];
  };
  // One sequence of the step in progress.
  struct Part {
    StepSequence sequence;
    int64_t split = 0;  // tokens that are recomputed
    Sequence* state = nullptr;
    int64_t n() const { return sequence.past + sequence.rows; }
  };
  // Tokens [begin, begin + count) of a part, rows [first_row, first_row + count) of their piece.
  struct Segment {
    const Part* part = nullptr;
    int64_t begin = 0, count = 0, first_row = 0;
  };
  // What is recomputed together: segments [begin, end).
  struct Piece {
    size_t begin = 0, end = 0;
    int64_t first_position = 0;  // in positions_
    int64_t rows = 0;
  };

  int64_t LargestSplit(int64_t tokens) const {
    return recompute_ ? recompute_->largest_split(tokens) : 0;
  }
  static int64_t BlocksFor(const Staged& staged) { return static_cast<int64_t>(staged.ids.size()); }
  bool offloads() const { return shape_.host_heads() > 0; }
  // Waits for a step that was left half way.
  void Quiesce();
  void MakeConstants();
  void ResizeStaging(std::vector<PageId>* ids, int64_t pages);
  void UpdatePages(Part* part);
  void PlanPieces();
  void FillBlocks(const Step& step);
  // Enqueues what brings a layer's rows to its buffer.
  void BringLayer(int64_t layer);
  void BringInputs(int64_t layer, const Segment& segment);
  void BringRows(int64_t layer, const Part& part);
  void RecomputePiece(int64_t layer, size_t index);
  RowTable Resident(int64_t layer) const;
  RowTable Store(int64_t layer) const;
  RowTable Rows(size_t buffer) const;
  RowTable Arrived(size_t buffer) const;

  CudaDevice& device_;
  PinnedHost host_;
  std::string policy_;
  Shape shape_;
  std::optional<Recompute> recompute_;
  PagePool device_pool_, host_pool_;
  SequenceTable store_, resident_, inputs_;
  std::unordered_map<SequenceId, Sequence> sequences_;
  Buffer constants_;  // int32: resident [layers][kv_heads], store [layers][kv_heads], staged
  StepBlock block_;   // the step's sequences
  // The inputs' sequences: the step's as they are kept, then every segment. Flags: how many of the
  // former, then those of every piece.
  StepBlock inputs_block_;
  std::unique_ptr<Mirror> positions_;
  int64_t positions_size_ = 0;
  Buffer scratch_;            // of attention
  Buffer recompute_scratch_;  // a piece's inputs, keys and values
  Stats stats_;               // without memory

  // Of the step in progress.
  std::vector<Part> parts_;
  std::vector<Segment> segments_;
  std::vector<Piece> pieces_;
  int64_t piece_rows_ = 0;  // of the longest
  std::vector<SequenceTable::Growth> growths_;
  CudaCopyBatch copies_;
  StepCheck check_;
  int64_t context_ = 0;
  int64_t x_layer_ = -1;
  KeyValueProjection* projection_ = nullptr;
  bool started_ = false;  // operations have been issued

  // Last: what they have been given uses the others.
  CudaBranch copy_, recomputing_, storing_, storing_inputs_;
};

CudaOffloadCache::CudaOffloadCache(CudaDevice& device, std::string policy, const Shape& shape,
                                   std::optional<Recompute> recompute, const TierBytes& budget)
    : device_(device),
      host_(device),
      policy_(std::move(policy)),
      shape_(shape),
      recompute_(std::move(recompute)),
      device_pool_(device, shape.page_bytes, budget.device, "KV cache, device tier"),
      host_pool_(host_, shape.store_page_bytes, budget.host, "KV cache, host store", kHostSlab),
      store_(shape.StoreTable(), host_pool_),
      resident_(shape.ResidentTable(), device_pool_),
      inputs_(shape.InputTable(), host_pool_),
      block_(device),
      inputs_block_(device),
      copy_(device, PieceMark(kBuffers, 0), /*first=*/false),
      recomputing_(device, kBuffers, /*first=*/false),
      storing_(device, kBuffers, /*first=*/false),
      storing_inputs_(device, 0, /*first=*/false) {
  LC_CHECK(shape.on_gpu);
  MakeConstants();
}

CudaOffloadCache::~CudaOffloadCache() {
  while (!sequences_.empty()) Release(sequences_.begin()->first);
}

void CudaOffloadCache::MakeConstants() {
  const int64_t heads = shape_.layout.kv_heads, own = shape_.device_heads;
  const auto table = static_cast<size_t>(shape_.layout.layers * heads);
  std::vector<int32_t> lists(2 * table + static_cast<size_t>(heads));
  for (int64_t layer = 0; layer < shape_.layout.layers; ++layer) {
    for (int64_t head = 0; head < heads; ++head) {
      const auto at = static_cast<size_t>(layer * heads + head);
      lists[at] = head < own ? static_cast<int32_t>(layer * own + head) : -1;
      lists[table + at] =
          head < own ? -1 : static_cast<int32_t>(layer * shape_.host_heads() + head - own);
    }
  }
  for (int64_t head = 0; head < heads; ++head) {
    lists[2 * table + static_cast<size_t>(head)] =
        head < own ? -1 : static_cast<int32_t>(head - own);
  }
  constants_ = device_.Allocate(lists.size() * sizeof(int32_t));
  device_.Upload(constants_.data(), lists.data(), constants_.size());
}

SequenceId CudaOffloadCache::Create() {
  const SequenceId id = store_.Create();
  LC_CHECK(resident_.Create() == id && inputs_.Create() == id);
  sequences_[id];
  return id;
}

SequenceId CudaOffloadCache::Fork(SequenceId parent) {
  Quiesce();
  const SequenceId id = store_.Fork(parent);
  LC_CHECK(resident_.Fork(parent) == id && inputs_.Fork(parent) == id);
  sequences_[id];
  return id;
}

void CudaOffloadCache::Release(SequenceId id) {
  Quiesce();
  store_.Release(id);
  resident_.Release(id);
  inputs_.Release(id);
  Sequence& sequence = sequences_.at(id);
  for (size_t b = 0; b < kBuffers; ++b) {
    for (Staged* staged : {&sequence.rows[b], &sequence.arrived[b], &sequence.inputs[b]}) {
      ResizeStaging(&staged->ids, 0);
    }
  }
  sequences_.erase(id);
}

void CudaOffloadCache::Quiesce() {
  if (std::exchange(started_, false)) {
    for (CudaBranch* branch : {&copy_, &recomputing_, &storing_, &storing_inputs_}) branch->Reset();
  }
  copies_ = CudaCopyBatch();
  // Its staging is for more tokens than its sequences have. What takes these pages next is ordered
  // behind the step's stream.
  for (const Part& part : parts_) {
    for (size_t b = 0; b < kBuffers; ++b) {
      for (Staged* staged :
           {&part.state->rows[b], &part.state->arrived[b], &part.state->inputs[b]}) {
        ResizeStaging(&staged->ids, 0);
      }
    }
  }
  parts_.clear();
}

// Gives pages back, or takes those that Reserve() has promised.
void CudaOffloadCache::ResizeStaging(std::vector<PageId>* ids, int64_t pages) {
  while (static_cast<int64_t>(ids->size()) > pages) {
    device_pool_.DropReference(ids->back());
    ids->pop_back();
  }
  while (static_cast<int64_t>(ids->size()) < pages) ids->push_back(device_pool_.Take());
}

void CudaOffloadCache::BeginStep(const Step& step) {
  check_(step, store_);
  Quiesce();
  growths_.clear();
  x_layer_ = -1;
  projection_ = nullptr;
  // Pages of a part's rows, arrived rows and inputs in a buffer.
  const auto needed = [this](const Part& part) {
    std::array<int64_t, 3> pages{};
    if (!offloads()) return pages;
    pages[0] = Shape::Blocks(part.n(), shape_.staging_page_tokens);
    if (shape_.expands()) pages[1] = Shape::Blocks(part.n(), shape_.store_page_tokens);
    if (part.split > 0) pages[2] = Shape::Blocks(part.split, shape_.input_staging_tokens());
    return pages;
  };
  int64_t staging = 0;
  for (const StepSequence& sequence : step.sequences) {
    const int64_t split = recompute_ && sequence.decode ? recompute_->split(sequence.past) : 0;
    LC_CHECK(split >= 0 && split <= sequence.past, "{} of {} tokens", split, sequence.past);
    parts_.push_back({sequence, split, &sequences_.at(sequence.id)});
    growths_.push_back({sequence.id, sequence.rows});
    const auto pages = needed(parts_.back());
    for (size_t b = 0; b < kBuffers; ++b) {
      const Sequence& state = *parts_.back().state;
      staging += std::max<int64_t>(pages[0] - BlocksFor(state.rows[b]), 0) +
                 std::max<int64_t>(pages[1] - BlocksFor(state.arrived[b]), 0) +
                 std::max<int64_t>(pages[2] - BlocksFor(state.inputs[b]), 0);
    }
  }
  // Everything that can throw comes first.
  host_pool_.Reserve(store_.PagesNeeded(growths_) + inputs_.PagesNeeded(growths_));
  device_pool_.Reserve(resident_.PagesNeeded(growths_) + staging);
  store_.Grow(growths_);
  resident_.Grow(growths_);
  inputs_.Grow(growths_);
  for (Part& part : parts_) {
    const auto pages = needed(part);
    for (size_t b = 0; b < kBuffers; ++b) {
      ResizeStaging(&part.state->rows[b].ids, pages[0]);
      ResizeStaging(&part.state->arrived[b].ids, pages[1]);
      ResizeStaging(&part.state->inputs[b].ids, pages[2]);
    }
    UpdatePages(&part);
  }
  PlanPieces();
  FillBlocks(step);
  const size_t scratch = ops::cuda::AttentionScratchBytes(
      std::max<int64_t>(step.decode_rows, 1), shape_.layout.q_heads, shape_.layout.head_dim);
  if (scratch > scratch_.size()) {
    scratch_ = Buffer();
    scratch_ = device_.Allocate(scratch);
  }
}

void CudaOffloadCache::UpdatePages(Part* part) {
  Sequence& state = *part->state;
  const SequenceId id = part->sequence.id;
  const int64_t layers = shape_.layout.layers;
  // A table's page of a layer holds `heads` lists of `page_tokens` rows each.
  const auto update = [&](DevicePages& pages, const SequenceTable& table, int64_t heads,
                          int64_t page_tokens, uint64_t row_bytes) {
    if (heads == 0) return;
    std::byte* const* const* lists = table.Lists(id);
    const uint64_t head_bytes = static_cast<uint64_t>(page_tokens) * row_bytes;
    pages.Update(device_, layers * heads, table.Blocks(id), part->sequence.past / page_tokens,
                 [&](int64_t list, int64_t b) {
                   return lists[list / heads][b] + static_cast<uint64_t>(list % heads) * head_bytes;
                 });
  };
  update(state.store, store_, shape_.host_heads(), shape_.store_page_tokens,
         shape_.store_format.row_bytes());
  update(state.resident, resident_, shape_.device_heads, shape_.resident_page_tokens,
         shape_.format.row_bytes());
  if (shape_.keeps_inputs) {
    update(state.host_inputs, inputs_, 1, shape_.input_page_tokens, 0);
  }
  const auto staged = [&](Staged& staged, int64_t heads, int64_t page_tokens, uint64_t row_bytes) {
    const uint64_t head_bytes = static_cast<uint64_t>(page_tokens) * row_bytes;
    staged.pages.Update(device_, heads, BlocksFor(staged), 0, [&](int64_t list, int64_t b) {
      return device_pool_.data(staged.ids[static_cast<size_t>(b)]) +
             static_cast<uint64_t>(list) * head_bytes;
    });
  };
  for (size_t b = 0; b < kBuffers; ++b) {
    staged(state.rows[b], shape_.host_heads(), shape_.staging_page_tokens,
           shape_.format.row_bytes());
    staged(state.arrived[b], shape_.host_heads(), shape_.store_page_tokens,
           shape_.store_format.row_bytes());
    staged(state.inputs[b], 1, 1, 0);
  }
}

void CudaOffloadCache::PlanPieces() {
  segments_.clear();
  pieces_.clear();
  piece_rows_ = 0;
  int64_t total = 0;
  for (const Part& part : parts_) total += part.split;
  if (total == 0) return;
  const int64_t most =
      std::max(offload::kGpuRecomputeTokens, (total + kMaxPieces - 1) / kMaxPieces);
  for (const Part& part : parts_) {
    for (int64_t begin = 0; begin < part.split;) {
      if (pieces_.empty() || pieces_.back().rows == most) {
        const int64_t position =
            pieces_.empty() ? 0 : pieces_.back().first_position + pieces_.back().rows;
        pieces_.push_back({segments_.size(), segments_.size(), position, 0});
      }
      Piece& piece = pieces_.back();
      const int64_t count = std::min(most - piece.rows, part.split - begin);
      segments_.push_back({&part, begin, count, piece.rows});
      piece.rows += count;
      piece.end = segments_.size();
      begin += count;
    }
  }
  for (const Piece& piece : pieces_) piece_rows_ = std::max(piece_rows_, piece.rows);
  if (positions_size_ < total) {
    positions_.reset();
    positions_ = device_.CreateMirror(static_cast<size_t>(total) * sizeof(int32_t));
    positions_size_ = total;
  }
  auto* position = positions_->host<int32_t>();
  for (const Segment& segment : segments_) {
    std::iota(position, position + segment.count, static_cast<int32_t>(segment.begin));
    position += segment.count;
  }
  const Layout& layout = shape_.layout;
  const size_t bytes = static_cast<size_t>(piece_rows_) *
                       (static_cast<size_t>(layout.hidden) * SizeOf(layout.dtype) +
                        2 * static_cast<size_t>(layout.kv_heads * layout.head_dim) * sizeof(float));
  if (recompute_scratch_.size() < bytes) {
    recompute_scratch_ = Buffer();
    recompute_scratch_ = device_.Allocate(bytes);
  }
}

void CudaOffloadCache::FillBlocks(const Step& step) {
  const auto count = static_cast<int64_t>(parts_.size());
  block_.Begin(step.decode_rows, count - step.decode_rows);
  int64_t longest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Part& part = parts_[static_cast<size_t>(i)];
    ops::cuda::StepSequence& target = block_.at(i);
    // `stored`: rows before it do not arrive.
    target = {.first_row = static_cast<int32_t>(part.sequence.first_row),
              .rows = static_cast<int32_t>(part.sequence.rows),
              .past = static_cast<int32_t>(part.sequence.past),
              .stored = static_cast<int32_t>(part.split)};
    target.pages[ops::cuda::kResident] = part.state->resident.device();
    target.pages[ops::cuda::kStore] = part.state->store.device();
    for (size_t b = 0; b < kBuffers; ++b) {
      target.pages[kRows[b]] = part.state->rows[b].pages.device();
      target.pages[kArrived[b]] = part.state->arrived[b].pages.device();
    }
    if (part.sequence.decode) longest = std::max(longest, part.n());
  }
  context_ = ContextBucket(longest);
  if (!shape_.keeps_inputs) return;
  inputs_block_.Begin(count + static_cast<int64_t>(segments_.size()), 0);
  inputs_block_.flag(0) = static_cast<int32_t>(count);
  const auto fill = [&](int64_t index, const Part& part, int64_t first_row, int64_t rows,
                        int64_t past) {
    ops::cuda::StepSequence& target = inputs_block_.at(index);
    target = {.first_row = static_cast<int32_t>(first_row),
              .rows = static_cast<int32_t>(rows),
              .past = static_cast<int32_t>(past),
              .stored = static_cast<int32_t>(past)};
    target.pages[kHostInputs] = part.state->host_inputs.device();
    for (size_t b = 0; b < kBuffers; ++b) {
      target.pages[kRows[b]] = part.state->rows[b].pages.device();
      target.pages[kStagedInputs[b]] = part.state->inputs[b].pages.device();
    }
  };
  for (int64_t i = 0; i < count; ++i) {
    const Part& part = parts_[static_cast<size_t>(i)];
    fill(i, part, part.sequence.first_row, part.sequence.rows, part.sequence.past);
  }
  for (size_t p = 0; p < pieces_.size(); ++p) {
    const Piece& piece = pieces_[p];
    inputs_block_.flag(static_cast<int64_t>(p) + 1) = static_cast<int32_t>(piece.end - piece.begin);
    for (size_t s = piece.begin; s < piece.end; ++s) {
      const Segment& segment = segments_[s];
      fill(count + static_cast<int64_t>(s), *segment.part, segment.first_row, segment.count,
           segment.begin);
    }
  }
}

RowTable CudaOffloadCache::Resident(int64_t layer) const {
  return {.table = ops::cuda::kResident,
          .lists = static_cast<int32_t>(shape_.layout.layers * shape_.device_heads),
          .page_rows = static_cast<int32_t>(shape_.resident_page_tokens),
          .format = shape_.format,
          .list_of_head = constants_.as<int32_t>() + layer * shape_.layout.kv_heads};
}

RowTable CudaOffloadCache::Store(int64_t layer) const {
  return {.table = ops::cuda::kStore,
          .lists = static_cast<int32_t>(shape_.layout.layers * shape_.host_heads()),
          .page_rows = static_cast<int32_t>(shape_.store_page_tokens),
          .format = shape_.store_format,
          .list_of_head =
              constants_.as<int32_t>() + (shape_.layout.layers + layer) * shape_.layout.kv_heads};
}

RowTable CudaOffloadCache::Rows(size_t buffer) const {
  return {
      .table = kRows[buffer],
      .lists = static_cast<int32_t>(shape_.host_heads()),
      .page_rows = static_cast<int32_t>(shape_.staging_page_tokens),
      .format = shape_.format,
      .list_of_head = constants_.as<int32_t>() + 2 * shape_.layout.layers * shape_.layout.kv_heads};
}

RowTable CudaOffloadCache::Arrived(size_t buffer) const {
  RowTable table = Rows(buffer);
  table.table = kArrived[buffer];
  table.page_rows = static_cast<int32_t>(shape_.store_page_tokens);
  table.format = shape_.store_format;
  return table;
}

void CudaOffloadCache::BringInputs(int64_t layer, const Segment& segment) {
  const auto page_tokens = shape_.input_page_tokens;  // of both sides: pages have one size
  const uint64_t token_bytes = shape_.input_format.row_bytes();
  std::byte* const* from = inputs_.Lists(segment.part->sequence.id)[layer];
  const std::vector<PageId>& to =
      segment.part->state->inputs[static_cast<size_t>(layer) % kBuffers].ids;
  const int64_t end = segment.begin + segment.count;
  for (int64_t t = segment.begin; t < end;) {
    const int64_t block = t / page_tokens;
    const int64_t count = std::min(page_tokens - t % page_tokens, end - t);
    const uint64_t offset = static_cast<uint64_t>(t % page_tokens) * token_bytes;
    copies_.Add(device_pool_.data(to[static_cast<size_t>(block)]) + offset, from[block] + offset,
                static_cast<uint64_t>(count) * token_bytes);
    t += count;
  }
}

// The rows that are not recomputed.
void CudaOffloadCache::BringRows(int64_t layer, const Part& part) {
  const int64_t page_tokens = shape_.store_page_tokens;
  const uint64_t row_bytes = shape_.store_format.row_bytes();
  const auto heads = static_cast<size_t>(shape_.host_heads());
  const size_t buffer = static_cast<size_t>(layer) % kBuffers;
  std::byte* const* from = store_.Lists(part.sequence.id)[layer];
  const std::vector<PageId>& to =
      (shape_.expands() ? part.state->arrived : part.state->rows)[buffer].ids;
  CUstream_st* stream = AsCuda(copy_.stream()).handle();
  const size_t pitch = static_cast<size_t>(page_tokens) * row_bytes;
  for (int64_t t = part.split; t < part.sequence.past;) {
    const int64_t block = t / page_tokens;
    const int64_t count = std::min(page_tokens - t % page_tokens, part.sequence.past - t);
    const std::byte* source = from[block];
    std::byte* target = device_pool_.data(to[static_cast<size_t>(block)]);
    if (count == page_tokens) {
      copies_.Add(target, source, heads * pitch);
    } else {
      const size_t offset = static_cast<size_t>(t % page_tokens) * row_bytes;
      LC_CUDA(cudaMemcpy2DAsync(target + offset, pitch, source + offset, pitch,
                                static_cast<size_t>(count) * row_bytes, heads,
                                cudaMemcpyHostToDevice, stream));
    }
    t += count;
  }
}

void CudaOffloadCache::RecomputePiece(int64_t layer, size_t index) {
  const Piece& piece = pieces_[index];
  const Layout& layout = shape_.layout;
  const size_t buffer = static_cast<size_t>(layer) % kBuffers;
  const int64_t width = layout.kv_heads * layout.head_dim;
  const int64_t room = piece_rows_ * layout.hidden * static_cast<int64_t>(SizeOf(layout.dtype));
  // f32 behind them: a row's bytes are a multiple of 4, and wide models' of 16.
  auto* keys = reinterpret_cast<float*>(recompute_scratch_.as<std::byte>() + room);
  const auto x = MatrixView::Of(recompute_scratch_.data(), layout.dtype, piece.rows, layout.hidden);
  const auto k = MatrixView::Of(keys, piece.rows, width);
  const auto v = MatrixView::Of(keys + piece_rows_ * width, piece.rows, width);
  Stream& stream = recomputing_.stream();
  StepView view = inputs_block_.Decoding(context_);
  view.sequences += parts_.size() + piece.begin;
  view.count = inputs_block_.device_flags() + 1 + index;
  view.capacity = static_cast<int32_t>(piece.end - piece.begin);
  view.max_rows = static_cast<int32_t>(piece.rows);
  ops::cuda::GatherInputs(stream, view,
                          {.table = kStagedInputs[buffer],
                           .lists = 1,
                           .list = 0,
                           .page_rows = static_cast<int32_t>(shape_.input_page_tokens)},
                          x);
  const auto* positions = positions_->device<const int32_t>() + piece.first_position;
  projection_->Project(stream, layer, x, {positions, static_cast<size_t>(piece.rows)}, k, v);
  ops::cuda::AppendRows(stream, view, layout.kv_heads, Rows(buffer), k, v);
}

void CudaOffloadCache::BringLayer(int64_t layer) {
  if (!offloads() || layer >= shape_.layout.layers) return;
  const size_t buffer = static_cast<size_t>(layer) % kBuffers;
  // Inputs first, so that recomputation begins early.
  for (size_t p = 0; p < pieces_.size(); ++p) {
    for (size_t s = pieces_[p].begin; s < pieces_[p].end; ++s) BringInputs(layer, segments_[s]);
    if (!recompute_->chunked && p + 1 < pieces_.size()) continue;
    copies_.Send(copy_.stream());
    copy_.Mark(PieceMark(buffer, p));
  }
  for (const Part& part : parts_) BringRows(layer, part);
  copies_.Send(copy_.stream());
  copy_.Mark(RowsMark(buffer));
  if (pieces_.empty()) return;
  LC_CHECK(projection_ != nullptr, "rows are recomputed without a projection");
  for (size_t p = 0; p < pieces_.size(); ++p) {
    const size_t arrived = recompute_->chunked ? p : pieces_.size() - 1;
    copy_.Join(recomputing_.stream(), PieceMark(buffer, arrived));
    RecomputePiece(layer, p);
  }
  recomputing_.Mark(static_cast<int>(buffer));
}

void CudaOffloadCache::KeepInputs(Stream& stream, int64_t layer, const Step& step,
                                  const MatrixView& x, KeyValueProjection* projection) {
  if (!shape_.keeps_inputs) return;
  LC_CHECK(x.dtype == shape_.layout.dtype && x.rows == step.rows && x.cols == shape_.layout.hidden,
           "inputs are [{}, {}] of {}", x.rows, x.cols, Name(x.dtype));
  if (layer == 0) inputs_block_.Send(stream);
  started_ = true;
  x_layer_ = layer;
  projection_ = projection;
  storing_inputs_.Fork(stream);
  StepView view = inputs_block_.Decoding(context_);
  view.count = inputs_block_.device_flags();
  view.capacity = static_cast<int32_t>(parts_.size());
  ops::cuda::AppendInputs(storing_inputs_.stream(), view,
                          {.table = kHostInputs,
                           .lists = static_cast<int32_t>(shape_.layout.layers),
                           .list = static_cast<int32_t>(layer),
                           .page_rows = static_cast<int32_t>(shape_.input_page_tokens)},
                          x);
}

void CudaOffloadCache::Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                              const MatrixView& k, const MatrixView& v, float scale,
                              const MatrixView& out) {
  const Layout& layout = shape_.layout;
  LC_CHECK(layer >= 0 && layer < layout.layers);
  LC_CHECK(parts_.size() == step.sequences.size(), "Attend() outside of BeginStep/EndStep");
  if (shape_.keeps_inputs && x_layer_ != layer) {
    throw InvalidArgument(
        "KV policy {}: layer {} attends without its inputs; call KeepInputs() first", policy_,
        layer);
  }
  started_ = true;
  const size_t buffer = static_cast<size_t>(layer) % kBuffers;
  if (layer == 0) {
    block_.Send(stream);
    if (!pieces_.empty()) {
      const Piece& last = pieces_.back();
      positions_->Send(stream,
                       static_cast<size_t>(last.first_position + last.rows) * sizeof(int32_t));
    }
    // What earlier steps have stored and where, and what their attention has read.
    copy_.Fork(stream);
    recomputing_.Fork(stream);
    BringLayer(0);
    BringLayer(1);
  }
  const auto each = [&](const auto& body) {
    if (block_.decoding() > 0) body(block_.Decoding(context_));
    for (int64_t i = 0; i < block_.prefilling(); ++i) body(block_.Prefilling(i));
  };
  const auto attend = [&](const RowTable& table) {
    each([&](const StepView& view) {
      Mark(stream, Section::kManagement);
      ops::cuda::AppendRows(stream, view, layout.kv_heads, table, k, v);
      const SectionScope section(stream, Section::kAttention);
      ops::cuda::PagedAttention(stream, view, layout.kv_heads, table, q, layout.q_heads, scale, out,
                                scratch_.data());
    });
  };
  if (shape_.device_heads > 0) attend(Resident(layer));
  if (offloads()) {
    Mark(stream, Section::kTransfer);
    copy_.Join(stream, RowsMark(buffer));
    recomputing_.Join(stream, static_cast<int>(buffer));
    Mark(stream, Section::kManagement);
    const RowTable rows = Rows(buffer);
    if (shape_.expands()) {
      each([&](const StepView& view) {
        ops::cuda::CopyRows(stream, view, layout.kv_heads, Arrived(buffer), rows,
                            {.kind = RowRange::kRing});
      });
    }
    attend(rows);
    storing_.Fork(stream);
    each([&](const StepView& view) {
      ops::cuda::CopyRows(storing_.stream(), view, layout.kv_heads, rows, Store(layer),
                          {.kind = RowRange::kNew});
    });
    storing_.Mark(static_cast<int>(buffer));
    // The buffer has been read: the layer after the next may have it.
    if (layer + static_cast<int64_t>(kBuffers) < layout.layers) {
      copy_.Fork(stream);
      storing_.Join(copy_.stream(), static_cast<int>(buffer));
      BringLayer(layer + static_cast<int64_t>(kBuffers));
    }
  }
  // x is the caller's again.
  if (shape_.keeps_inputs) storing_inputs_.JoinAll(stream);
  if (layer + 1 == layout.layers) {
    storing_.JoinAll(stream);
    recomputing_.JoinAll(stream);
    copy_.JoinAll(stream);
  }
  x_layer_ = -1;
}

void CudaOffloadCache::EndStep(const Step&) {
  const auto layers = static_cast<uint64_t>(shape_.layout.layers);
  const auto all_heads = layers * static_cast<uint64_t>(shape_.layout.kv_heads);
  const auto host_heads = layers * static_cast<uint64_t>(shape_.host_heads());
  const uint64_t row_bytes = shape_.store_format.row_bytes();
  for (const Part& part : parts_) {
    const auto rows = static_cast<uint64_t>(part.sequence.rows);
    const auto split = static_cast<uint64_t>(part.split);
    const uint64_t moved = (static_cast<uint64_t>(part.sequence.past) - split) * host_heads;
    stats_.stream.rows += moved;
    stats_.stream.bytes += moved * row_bytes;
    Traffic& stored = part.sequence.decode ? stats_.spill : stats_.prefill;
    stored.rows += rows * host_heads;
    stored.bytes += rows * host_heads * row_bytes;
    if (shape_.keeps_inputs) {
      const uint64_t input_bytes = shape_.input_format.row_bytes();
      stats_.activations.rows += split * layers;
      stats_.activations.bytes += split * layers * input_bytes;
      stats_.rows_recomputed += split * host_heads;
      stored.bytes += rows * layers * input_bytes;
    }
    stats_.bytes_read += static_cast<uint64_t>(part.n()) * all_heads * shape_.format.row_bytes();
    stats_.bytes_written += rows * all_heads * shape_.format.row_bytes();
    store_.Commit(part.sequence.id, part.sequence.rows);
    resident_.Commit(part.sequence.id, part.sequence.rows);
    inputs_.Commit(part.sequence.id, part.sequence.rows);
  }
  parts_.clear();
  started_ = false;
}

Stats CudaOffloadCache::GetStats() const {
  Stats stats = stats_;
  AddPools(device_pool_, &host_pool_, &stats);
  return stats;
}

}  // namespace

std::unique_ptr<Cache> CreateCudaOffloadCache(Device& device, std::string policy,
                                              const Shape& shape,
                                              std::optional<Recompute> recompute,
                                              const TierBytes& budget) {
  LC_CHECK(device.type() == DeviceType::kCuda);
  return std::make_unique<CudaOffloadCache>(static_cast<CudaDevice&>(device), std::move(policy),
                                            shape, std::move(recompute), budget);
}

}  // namespace litecache::kv
