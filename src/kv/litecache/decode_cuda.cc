// A decode step of policy litecache on a GPU: the kernels of each layer, and which stream has them.
#include <algorithm>
#include <utility>

#include "device/sections.h"
#include "kv/litecache/lite_cache_cuda.h"
#include "ops/dense/dense_cuda.h"
#include "ops/rows/rows_cuda.h"

namespace litecache::kv {

using ops::cuda::LiteLayer;
using ops::cuda::RowRange;
using ops::cuda::StepView;

// The first decode step after a prompt: sink and recent rows, and the top-k of the prompt's last
// query (litecache section 4, step 0), of all layers.
void CudaLiteCache::Start(Stream& stream, float scale) {
  if (std::exchange(started_, true)) return;
  AsCuda(stream).AddCheck(check_transfers_);
  if (ahead_ > 0) ops::cuda::ShareGpu(stream);
  if (step_pull_ != nullptr) {
    step_pull_->BeginStep(stream, Apart(), block_.device_number());
  }
  if (Apart()) AsCuda(stream).Divert(rest_);
  block_.Send(stream);
  if (fills_.empty()) return;
  const StepView step = block_.Decoding(context_);
  for (int64_t i = 0; i < tiers_.shape.layout.layers; ++i) {
    if (!HasOffloaded(i)) continue;
    const LiteLayer& layer = layers_[static_cast<size_t>(i)];
    ops::cuda::BeginFill(stream, step, lite_shape_, layer, block_.device_flags());
    Choose(stream, i, {.q = nullptr, .scale = scale, .fill = true}, OwnChain());
    Pull(stream, i);
    ops::cuda::FillFixed(stream, step, lite_shape_, layer, block_.device_flags());
  }
  // From here on, also where the step fails and is run again: its lookups move the labels, and
  // what they chose must stay.
  const Shape& shape = tiers_.shape;
  for (const StepSequence& part : fills_) {
    Get(part.id).filled = true;
    Count(std::min(shape.Candidates(part.past), shape.Rows(part.past)) + shape.SinkRows(part.past) +
              part.past - shape.RecentBegin(part.past),
          &stats_.fill);
  }
}

void CudaLiteCache::Spill(Stream& stream, int64_t index) {
  const Shape& shape = tiers_.shape;
  const LiteLayer& layer = layers_[static_cast<size_t>(index)];
  const StepView step = block_.Decoding(context_);
  if (HasOffloaded(index)) {
    ops::cuda::CopyRows(stream, step, shape.layout.kv_heads, layer.slots, layer.store,
                        {.kind = RowRange::kLeaving, .recent = static_cast<int32_t>(shape.recent)});
  }
  Mark(stream, Section::kRetrieval);
  scorer_->Encode(stream, index, step, lite_shape_, layer, nullptr);
  Mark(stream, Section::kManagement);
}

void CudaLiteCache::SpillAhead(Stream& stream, int64_t index) {
  if (!WantsPrediction(index) || std::exchange(spilled_[static_cast<size_t>(index)], 1)) return;
  Spill(stream, index);
}

void CudaLiteCache::LookUp(Stream& stream, int64_t index, const MatrixView& q) {
  const LiteLayer& layer = layers_[static_cast<size_t>(index)];
  const StepView step = block_.Decoding(context_);
  ops::cuda::Lookup(stream, step, lite_shape_, layer, aggregation_, q);
  if (results_ == nullptr) return;
  Mark(stream, Section::kOverride);
  results_->AfterLookup(stream, {index, step, lite_shape_, layer});
  Mark(stream, Section::kManagement);
}

void CudaLiteCache::Choose(Stream& stream, int64_t index, const ops::cuda::SelectQuery& query,
                           const Decisions::Chain& chain) {
  const LiteLayer& layer = layers_[static_cast<size_t>(index)];
  const StepView step = block_.Decoding(context_);
  const bool replaces = ReplacesRows() && !query.fill;
  const CudaResultOverride::Place place{index, step, lite_shape_, layer};
  if (replaces && chain.aside != nullptr) {
    chain.aside->Fork(stream);
    results_->BesideSelection(chain.aside->stream(), place, chain.aside_scratch);
  }
  Mark(stream, Section::kRetrieval);
  scorer_->Select(stream, index, step, lite_shape_, layer, query, chain.scratch);
  if (replaces) {
    Mark(stream, Section::kOverride);
    if (chain.aside != nullptr) {
      chain.aside->JoinAll(stream);
    } else {
      results_->BesideSelection(stream, place, chain.aside_scratch);
    }
    results_->AfterSelection(stream, place, chain.aside_scratch);
  }
  Mark(stream, Section::kManagement);
  ops::cuda::UpdateSlots(stream, step, lite_shape_, layer, delta_, query.fill, chain.scratch);
}

void CudaLiteCache::Pull(Stream& stream, int64_t index) {
  Mark(stream, Section::kTransfer);
  transfer_->Move(stream, block_.Decoding(context_), lite_shape_,
                  layers_[static_cast<size_t>(index)], index);
  Mark(stream, Section::kManagement);
}

void CudaLiteCache::SelectResident(Stream& stream, int64_t index, const MatrixView& q,
                                   float scale) {
  if (!ResidentSelect(index)) return;
  Mark(stream, Section::kRetrieval);
  LiteLayer residents = layers_[static_cast<size_t>(index)];
  residents.refresh = no_refresh_;
  scorer_->Select(stream, index, block_.Decoding(context_), lite_shape_, residents,
                  {.q = &q, .scale = scale}, scratch_.data());
  Mark(stream, Section::kManagement);
}

void CudaLiteCache::Prefetch(Stream& stream, int64_t index, const Step& step_of_model,
                             const MatrixView& q, float scale) {
  LC_CHECK(index >= 1 && index < tiers_.shape.layout.layers && q.rows >= step_of_model.decode_rows);
  if (block_.decoding() == 0 || !WantsPrediction(index)) return;
  running_checked_ = false;
  Start(stream, scale);
  const Decisions::Chain chain = decisions_->Of(Apart());
  chain.branch->Fork(stream);
  Stream& decisions = chain.branch->stream();
  LookUp(decisions, index, q);
  SpillAhead(decisions, index);
  // With the query of the label, where the lookup has left it. Resident heads select later, with
  // the actual query.
  Choose(decisions, index, {.q = nullptr, .scale = scale}, chain);
  if (OnePull()) {
    step_pull_->Listed(stream, pulls(), decisions, block_.Decoding(context_), lite_shape_, index);
  } else {
    pulls().Fork(decisions);
    Pull(pulls().stream(), index);
    pulls().Mark(kRefreshed + static_cast<int>(index % (kMostAhead + 1)));
  }
  prepared_[static_cast<size_t>(index)] = 1;
  // Needs nothing of the next layer's query: nothing of it shall wait for that.
  if (index + 1 < tiers_.shape.layout.layers) SpillAhead(decisions, index + 1);
}

void CudaLiteCache::AttendDecoding(Stream& stream, int64_t index, const MatrixView& q,
                                   const MatrixView& k, const MatrixView& v, float scale,
                                   const MatrixView& out) {
  const Shape& shape = tiers_.shape;
  const LiteLayer& layer = layers_[static_cast<size_t>(index)];
  const StepView step = block_.Decoding(context_);
  const auto append = [&] {
    if (HasOffloaded(index)) {
      ops::cuda::AppendRows(stream, step, shape.layout.kv_heads, layer.slots, k, v);
    }
    if (HasResident(index)) {
      ops::cuda::AppendRows(stream, step, shape.layout.kv_heads, layer.resident, k, v);
    }
  };
  Mark(stream, Section::kManagement);
  if (prepared_[static_cast<size_t>(index)]) {
    // Needs nothing of the branches: the ring has a place beside those of the rows that they read.
    append();
    Mark(stream, Section::kTransfer);
    if (OnePull()) {
      step_pull_->Await(stream, index);
    } else {
      pulls().Join(stream, kRefreshed + static_cast<int>(index % (kMostAhead + 1)));
    }
    Mark(stream, Section::kManagement);
    SelectResident(stream, index, q, scale);
  } else {
    if (OnePull() && WantsPrediction(index)) step_pull_->Pass(stream, index);
    Spill(stream, index);
    if (HasOffloaded(index)) {
      LookUp(stream, index, q);
      Choose(stream, index, {.q = &q, .scale = scale}, OwnChain());
      Pull(stream, index);
    } else {
      SelectResident(stream, index, q, scale);
    }
    append();
  }
  ops::cuda::HybridTables tables;
  tables.slots = layer.slots;
  tables.codes = layer.codes;
  tables.resident = layer.resident;
  tables.cache_begin = lite_shape_.cache_begin;
  tables.windows = lite_shape_.windows;
  tables.dense = layer.dense;
  tables.selected = layer.selected;
  tables.selected_count = layer.selected_count;
  tables.max_selected = lite_shape_.max_rows;
  const SectionScope section(stream, Section::kAttention);
  ops::cuda::HybridAttention(stream, step, shape.layout.kv_heads, tables, q, shape.layout.q_heads,
                             scale, out, scratch_.data());
}

}  // namespace litecache::kv
