#include "kv/offload/offload_cache_cpu.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "kv/offload/offload_cache.h"
#include "ops/attention/attention.h"
#include "ops/common/available_cuda.h"

namespace litecache::kv::offload {

OffloadCache::OffloadCache(Device& device, std::string policy, const Shape& shape,
                           std::optional<Recompute> recompute, const TierBytes& budget)
    : OffloadBase(device, nullptr, std::move(policy), shape, std::move(recompute), budget),
      geometry_(MakeGeometry(shape.layout)) {}

OffloadCache::~OffloadCache() {
  link_.Stop();
  DropStaging();
}

void OffloadCache::Release(SequenceId id) {
  link_.Stop();  // for a step that was abandoned
  ReleaseTables(id);
}

void OffloadCache::Truncate(SequenceId id, int64_t tokens) {
  link_.Stop();  // as above
  TruncateTables(id, tokens);
}

TierBytes OffloadCache::BytesHeld(std::span<const SequenceId> ids) const {
  return {.device = static_cast<uint64_t>(resident_.PagesHeld(ids)) * device_pool_.page_bytes(),
          .host = static_cast<uint64_t>(store_.PagesHeld(ids) + inputs_.PagesHeld(ids)) *
                  host_pool_.page_bytes()};
}

uint64_t OffloadCache::BlockBytes() const {
  return store_.BytesOf(kBlockTokens, StoreUnit()) +
         resident_.BytesOf(kBlockTokens, ResidentUnit()) +
         (shape_.keeps_inputs ? inputs_.BytesOf(kBlockTokens, InputUnit()) : 0);
}

void OffloadCache::ExportBlock(SequenceId id, int64_t begin, std::span<std::byte> out) const {
  LC_CHECK(out.size() == BlockBytes() && begin % kBlockTokens == 0 &&
           begin + kBlockTokens <= Length(id));
  std::byte* next = out.data();
  store_.Export(id, begin, kBlockTokens, StoreUnit(), next);
  next += store_.BytesOf(kBlockTokens, StoreUnit());
  resident_.Export(id, begin, kBlockTokens, ResidentUnit(), next);
  next += resident_.BytesOf(kBlockTokens, ResidentUnit());
  if (shape_.keeps_inputs) inputs_.Export(id, begin, kBlockTokens, InputUnit(), next);
}

void OffloadCache::ImportBlock(SequenceId id, std::span<const std::byte> bytes) {
  link_.Stop();
  const int64_t begin = Length(id);
  LC_CHECK(bytes.size() == BlockBytes() && begin % kBlockTokens == 0);
  const std::vector<SequenceTable::Growth> growth = {{id, kBlockTokens}};
  host_pool_.Reserve(store_.PagesNeeded(growth) + inputs_.PagesNeeded(growth));
  device_pool_.Reserve(resident_.PagesNeeded(growth));
  const std::byte* next = bytes.data();
  for (SequenceTable* table : {&store_, &resident_, &inputs_}) {
    const TableUnit unit =
        table == &store_ ? StoreUnit() : (table == &resident_ ? ResidentUnit() : InputUnit());
    table->Grow(growth);
    if (table != &inputs_ || shape_.keeps_inputs) {
      table->Import(id, begin, kBlockTokens, unit, next);
      next += table->BytesOf(kBlockTokens, unit);
    }
    table->Commit(id, kBlockTokens);
  }
  first_inputs_.Grow(growth);  // has no pages on the CPU, but a length
  first_inputs_.Commit(id, kBlockTokens);
}

void OffloadCache::DropStaging() {
  for (const PageId page : staging_ids_) device_pool_.DropReference(page);
  staging_ids_.clear();
  for (auto& pages : staging_) pages.clear();
}

void OffloadCache::BeginStep(const Step& step) {
  check_(step, store_);
  link_.Stop();
  DropStaging();
  parts_.clear();
  x_layer_ = -1;
  int64_t staging = 0;
  int64_t over = 0;
  for (const StepSequence& sequence : step.sequences) {
    parts_.push_back({sequence, SplitOf(step, sequence, &over).first});
    staging = std::max(staging, shape_.StagingPages(parts_.back().n(), parts_.back().split));
  }
  Grow(step, static_cast<int64_t>(Link::kBuffers) * staging);  // can throw
  for (auto& pages : staging_) {
    for (int64_t i = 0; i < staging; ++i) {
      staging_ids_.push_back(device_pool_.Take());
      pages.push_back(device_pool_.data(staging_ids_.back()));
    }
  }
  PlanTransfers();
  link_.Start(&transfers_);
}

ops::PagedRows OffloadCache::Store(const Part& part, int64_t layer, int64_t head) const {
  return {store_.Lists(part.sequence.id)[shape_.StoreList(layer, head)], shape_.store_page_tokens,
          shape_.store_format};
}

ops::PagedRows OffloadCache::Staging(size_t buffer, const Part& part, int64_t head) const {
  return {StagedRows(buffer, part, head), shape_.staging_page_tokens, shape_.format};
}

ops::PagedRows OffloadCache::Inputs(const Part& part, int64_t layer) const {
  return {inputs_.Lists(part.sequence.id)[layer], shape_.input_page_tokens, shape_.input_format};
}

void OffloadCache::PlanTransfers() {
  transfers_.resize(parts_.size() * static_cast<size_t>(shape_.layout.layers));
  size_t next = 0;
  for (int64_t layer = 0; layer < shape_.layout.layers; ++layer) {
    for (const Part& part : parts_) {
      const size_t buffer = next % Link::kBuffers;
      std::vector<ops::ConvertWork>& pieces = transfers_[next++].pieces;
      pieces.clear();
      for (int64_t begin = 0; begin < part.split; begin += kRecomputeTokens) {
        pieces.push_back({.source = Inputs(part, layer),
                          .target = {StagedInputs(buffer, part), shape_.input_staging_tokens(),
                                     shape_.input_format},
                          .begin = begin,
                          .count = std::min(kRecomputeTokens, part.split - begin)});
      }
      if (part.split == part.sequence.past) continue;
      for (int64_t head = shape_.device_heads; head < shape_.layout.kv_heads; ++head) {
        pieces.push_back({.source = Store(part, layer, head),
                          .target = Staging(buffer, part, head),
                          .begin = part.split,
                          .count = part.sequence.past - part.split});
      }
    }
  }
}

void OffloadCache::KeepInputs(Stream&, int64_t layer, const Step& step, const MatrixView& x,
                              KeyValueProjection* projection) {
  if (!shape_.keeps_inputs) return;
  LC_CHECK(x.dtype == DType::kF32 && x.rows == step.rows && x.cols == shape_.layout.hidden,
           "inputs are [{}, {}]", x.rows, x.cols);
  x_ = x;
  x_layer_ = layer;
  projection_ = projection;
}

void OffloadCache::Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                          const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
                          const MatrixView& out) {
  LC_CHECK(layer >= 0 && layer < shape_.layout.layers);
  LC_CHECK(parts_.size() == step.sequences.size(), "Attend() outside of BeginStep/EndStep");
  RequireInputs(layer);
  for (size_t i = 0; i < parts_.size(); ++i) AttendOne(stream, layer, i, q, k, v, softmax, out);
  x_layer_ = -1;
}

void OffloadCache::AttendOne(Stream& stream, int64_t layer, size_t index, const MatrixView& q,
                             const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
                             const MatrixView& out) {
  const Part& part = parts_[index];
  const size_t transfer = static_cast<size_t>(layer) * parts_.size() + index;
  const size_t buffer = transfer % Link::kBuffers;
  const int64_t heads = shape_.layout.kv_heads;
  lists_.clear();
  for (int64_t head = 0; head < heads; ++head) {
    lists_.push_back(head < shape_.device_heads
                         ? resident_.Lists(part.sequence.id)[shape_.ResidentList(layer, head)]
                         : StagedRows(buffer, part, head));
  }
  if (part.split > 0) RecomputeRows(stream, layer, part, transfer);
  link_.Await(transfer, transfers_[transfer].pieces.size());
  const ops::KvSequence view{.first_row = part.sequence.first_row,
                             .rows = part.sequence.rows,
                             .past = part.sequence.past,
                             .pages = lists_.data(),
                             .pages_per_head = Shape::Blocks(part.n(), shape_.staging_page_tokens)};
  ops::AppendKv(stream, geometry_, {&view, 1}, k, v);
  ops::Attention(stream, geometry_, {&view, 1}, q, shape_.layout.q_heads, softmax, out);
  StoreRows(stream, layer, part, buffer);
  link_.Release(transfer);
}

void OffloadCache::RecomputeRows(Stream& stream, int64_t layer, const Part& part, size_t transfer) {
  LC_CHECK(projection_ != nullptr, "rows are recomputed without a projection");
  const Layout& layout = shape_.layout;
  const int64_t width = layout.kv_heads * layout.head_dim;
  const auto room = [](int64_t columns) { return static_cast<size_t>(kRecomputeTokens * columns); };
  recompute_x_.resize(room(layout.hidden));
  recompute_k_.resize(room(width));
  recompute_v_.resize(room(width));
  // Every chunk of inputs is dequantized into the same buffer.
  recompute_pages_.assign(static_cast<size_t>(InputPieces(part)),
                          reinterpret_cast<std::byte*>(recompute_x_.data()));
  const ops::PagedRows staged{StagedInputs(transfer % Link::kBuffers, part),
                              shape_.input_staging_tokens(), shape_.input_format};
  const ops::PagedRows expanded{
      recompute_pages_.data(), kRecomputeTokens, {ops::RowEncoding::kF32, layout.hidden / 2}};
  if (!recompute_->chunked) link_.Await(transfer, static_cast<size_t>(InputPieces(part)));
  for (int64_t begin = 0; begin < part.split; begin += kRecomputeTokens) {
    const int64_t rows = std::min(kRecomputeTokens, part.split - begin);
    link_.Await(transfer, static_cast<size_t>(begin / kRecomputeTokens + 1));
    converts_.assign(1, {staged, expanded, begin, rows});
    ops::ConvertRows(stream, converts_);
    const auto k = MatrixView::Of(recompute_k_.data(), rows, width);
    const auto v = MatrixView::Of(recompute_v_.data(), rows, width);
    recompute_positions_.resize(static_cast<size_t>(rows));
    std::iota(recompute_positions_.begin(), recompute_positions_.end(),
              static_cast<int32_t>(begin));
    projection_->Project(stream, layer, MatrixView::Of(recompute_x_.data(), rows, layout.hidden),
                         recompute_positions_, k, v);
    const ops::KvSequence view{
        .first_row = 0,
        .rows = rows,
        .past = begin,
        .pages = lists_.data(),
        .pages_per_head = Shape::Blocks(part.n(), shape_.staging_page_tokens)};
    ops::AppendKv(stream, geometry_, {&view, 1}, k, v);
  }
}

void OffloadCache::StoreRows(Stream& stream, int64_t layer, const Part& part, size_t buffer) {
  converts_.clear();
  for (int64_t head = shape_.device_heads; head < shape_.layout.kv_heads; ++head) {
    converts_.push_back({.source = Staging(buffer, part, head),
                         .target = Store(part, layer, head),
                         .begin = part.sequence.past,
                         .count = part.sequence.rows});
  }
  ops::ConvertRows(stream, converts_);
  if (!shape_.keeps_inputs) return;
  const ops::RowFormat f32{ops::RowEncoding::kF32, shape_.layout.hidden / 2};
  const ops::PagedRows inputs = Inputs(part, layer);
  for (int64_t i = 0; i < part.sequence.rows; ++i) {
    ops::ConvertRow(f32,
                    reinterpret_cast<const std::byte*>(x_.Row<float>(part.sequence.first_row + i)),
                    shape_.input_format, inputs.Row(part.sequence.past + i));
  }
}

void OffloadCache::EndStep(const Step&) {
  link_.Stop();
  for (const Part& part : parts_) Commit(part.sequence, part.split);
  parts_.clear();
  DropStaging();
}

std::unique_ptr<Cache> CreateOffloadCache(Device& device, const std::string& policy,
                                          const Shape& shape, std::optional<Recompute> recompute,
                                          const TierBytes& budget) {
  LC_CHECK(shape.on_gpu == (device.type() == DeviceType::kCuda),
           "the plan was made for another device");
  if constexpr (ops::cuda::kAvailable) {
    if (shape.on_gpu) {
      return CreateCudaOffloadCache(device, policy, shape, std::move(recompute), budget);
    }
  }
  return std::make_unique<OffloadCache>(device, policy, shape, std::move(recompute), budget);
}

}  // namespace litecache::kv::offload
