#include "kv/litecache/decode_cuda.h"

#include <algorithm>
#include <utility>

#include "device/sections.h"
#include "ops/attention/attention_cuda.h"
#include "ops/reuse/qsac_lookup_cuda.h"
#include "ops/reuse/update_slots_cuda.h"
#include "ops/rows/rows_cuda.h"
#include "ops/select/select_cuda.h"
#include "ops/transfer/pull_rows_cuda.h"

namespace litecache::kv {

using ops::cuda::LiteCacheLayer;
using ops::cuda::RowRange;

CudaDecodePath::CudaDecodePath(CudaDevice& device, const Shape& shape, const CudaLayers& layers,
                               CudaRetriever& retriever, LinkPulls& pulls, const KvOptions& options,
                               std::span<const uint8_t> prefetched,
                               std::unique_ptr<CudaResultOverride> results)
    : shape_(shape),
      layers_(layers),
      retriever_(retriever),
      pulls_(pulls),
      aggregation_(AggregationOf(options)),
      prediction_tau_(static_cast<float>(options.prediction_eta)),
      prediction_margin_(static_cast<float>(options.prediction_margin)),
      delta_(options.delta_update),
      verify_(options.verify_predictions),
      prefetched_(prefetched.begin(), prefetched.end()),
      device_(device),
      results_(std::move(results)) {
  if (shape.offloaded == 0) encoding_.emplace(device, 0, /*first=*/false);
  if (std::ranges::count(prefetched, 1) == 0) return;
  decisions_.emplace(device, pulls.split(), ReplacesRows());
  if (verify_) corrections_.emplace(device);
}

void CudaDecodePath::Reserve() {
  size_t aside = 0;
  if (results_ != nullptr) results_->Reserve(layers_.sequences());
  if (ReplacesRows()) {
    aside = results_->ScratchBytes(layers_.shape(), layers_.sequences(), layers_.context());
    own_aside_ = Buffer();
    own_aside_ = device_.Allocate(aside);
  }
  if (decisions_) decisions_->Reserve(layers_.decision_scratch_bytes(), aside);
  if (corrections_) corrections_->Reserve(layers_.scratch_bytes(), aside);
}

void CudaDecodePath::BeginStep(const ops::cuda::StepView& step, bool keeps_rows, bool whole) {
  step_ = step;
  keeps_rows_ = keeps_rows;
  whole_ = whole;
  decided_.assign(prefetched_.size(), 0);
  spilled_.assign(prefetched_.size(), 0);
}

void CudaDecodePath::Start(Stream& stream) {
  if (results_ != nullptr) results_->BeginStep(stream, step_);
  if (!EncodesAside()) return;
  encoding_->Fork(stream);
  for (int64_t i = 0; i < shape_.layout.layers; ++i) {
    if (layers_.ResidentsSelect(i)) Spill(encoding_->stream(), i);
  }
}

void CudaDecodePath::Fill(Stream& stream, const int32_t* fill, float scale) {
  for (int64_t i = 0; i < shape_.layout.layers; ++i) {
    if (!shape_.offloads(i)) continue;
    ops::cuda::BeginFill(stream, step_, layers_.shape(), layers_.at(i), fill);
    Choose(stream, At(i), Query(nullptr, scale, /*fill=*/true), OwnChain());
    pulls_.Pull(stream, step_, layers_, i);
    ops::cuda::FillFixed(stream, step_, layers_.shape(), layers_.at(i), fill);
  }
}

void CudaDecodePath::Spill(Stream& stream, int64_t index) {
  const LiteCacheLayer& layer = layers_.at(index);
  if (shape_.offloads(index)) {
    ops::cuda::CopyRows(
        stream, step_, shape_.layout.kv_heads, layer.slots, layer.store,
        {.kind = RowRange::kLeaving, .recent = static_cast<int32_t>(shape_.recent)});
  }
  Mark(stream, Section::kRetrieval);
  retriever_.Encode(stream, index, step_, layers_.shape(), layer, nullptr);
  Mark(stream, Section::kManagement);
}

void CudaDecodePath::SpillAhead(Stream& stream, int64_t index) {
  const auto at = static_cast<size_t>(index);
  if (prefetched_[at] && !std::exchange(spilled_[at], 1)) Spill(stream, index);
}

void CudaDecodePath::LookUp(Stream& stream, const Target& target, const MatrixView& q) {
  LiteCacheLayer layer = target.layer;
  float margin = prediction_margin_, least_tau = prediction_tau_;
  if (results_ != nullptr) {
    layer.tau = results_->Thresholds(target.index, target.verifying);
    layer.tau_stride = layers_.shape().kv_heads;
    margin = 0, least_tau = -1;  // the forced thresholds decide alone
  }
  if (target.verifying) {
    ops::cuda::VerifyLookup(stream, step_, layers_.shape(), layer, aggregation_, q,
                            {.margin = margin, .least_tau = least_tau}, target.condition);
  } else {
    ops::cuda::Lookup(stream, step_, layers_.shape(), layer, aggregation_, q);
  }
}

void CudaDecodePath::Choose(Stream& stream, const Target& target,
                            const ops::cuda::SelectQuery& query, const Decisions::Chain& chain) {
  LiteCacheLayer layer = target.layer;
  const bool replaces = ReplacesRows() && !query.fill;
  CudaResultOverride::Lists lists;
  if (replaces) {
    if (chain.aside != nullptr) chain.aside->Fork(stream);
    Mark(stream, Section::kOverride);
    lists = results_->Select(chain.aside != nullptr ? chain.aside->stream() : stream,
                             {target.index, step_, layers_.shape(), layer, target.verifying},
                             chain.aside_scratch);
  }
  Mark(stream, Section::kRetrieval);
  retriever_.Select(stream, target.index, step_, layers_.shape(), layer, query, chain.scratch);
  if (replaces) {
    if (chain.aside != nullptr) chain.aside->JoinAll(stream);
    layer.selected = lists.selected;
    layer.selected_count = lists.selected_count;
  }
  Mark(stream, Section::kManagement);
  ops::cuda::UpdateSlots(stream, step_, layers_.shape(), layer, delta_, query.fill, chain.scratch);
}

void CudaDecodePath::SelectResident(Stream& stream, int64_t index, const MatrixView& q,
                                    float scale) {
  if (keeps_rows_ || whole_ || !layers_.ResidentsSelect(index)) return;
  Mark(stream, Section::kRetrieval);
  retriever_.Select(stream, index, step_, layers_.shape(), layers_.Residents(index),
                    Query(&q, scale), layers_.scratch());
  Mark(stream, Section::kManagement);
}

void CudaDecodePath::AttendVerified(Stream& stream, int64_t index, const MatrixView& q,
                                    const ops::Softmax& softmax, const MatrixView& out) {
  const LiteCacheLayer layer = layers_.Checked(index);
  const auto decide = [&](Stream& deciding, const Target& target, const Decisions::Chain& chain) {
    Choose(deciding, target, Query(&q, softmax.scale), chain);
    pulls_.Pull(deciding, step_, layers_, index);
  };
  // Resident heads select in every step.
  const bool beside = pulls_.engine().kernels_only() && !layers_.ResidentsSelect(index);
  if (!beside) {
    const Target target{index, layer, /*verifying=*/true, {}};
    LookUp(stream, target, q);
    decide(stream, target, OwnChain());
    AttendKept(stream, index, q, softmax, out, {.scratch = layers_.scratch()});
    return;
  }
  const Target target{index, layer, /*verifying=*/true, corrections_->steps().Begin(stream)};
  CudaBranch& branch = corrections_->branch();
  branch.Fork(stream);
  LookUp(branch.stream(), target, q);
  // Meanwhile all heads attend the rows that they have; those that miss attend once more.
  AttendKept(stream, index, q, softmax, out, {.scratch = layers_.scratch()});
  branch.JoinAll(stream);
  corrections_->steps().Run(stream, target.condition, [&](Stream& correcting) {
    decide(correcting, target,
           {.scratch = corrections_->scratch(), .aside_scratch = corrections_->aside()});
    AttendKept(correcting, index, q, softmax, out,
               {.refresh = layer.refresh, .refreshed = true, .scratch = corrections_->scratch()});
  });
}

void CudaDecodePath::Prefetch(Stream& stream, int64_t index, const MatrixView& q, float scale) {
  const Decisions::Chain chain = decisions_->Of(pulls_.apart());
  chain.branch->Fork(stream);
  Stream& decisions = chain.branch->stream();
  LookUp(decisions, At(index), q);
  SpillAhead(decisions, index);
  // The query is the one that the lookup has stored as the label. Resident heads select later, with
  // the actual query.
  Choose(decisions, At(index), Query(nullptr, scale), chain);
  pulls_.PullAhead(stream, decisions, step_, layers_, index);
  decided_[static_cast<size_t>(index)] = 1;
  // The spill does not depend on the next layer's query, so it is issued before waiting for that.
  if (index + 1 < shape_.layout.layers) SpillAhead(decisions, index + 1);
}

void CudaDecodePath::Append(Stream& stream, int64_t index, const MatrixView& k,
                            const MatrixView& v) {
  const int64_t kv_heads = shape_.layout.kv_heads;
  const LiteCacheLayer& layer = layers_.at(index);
  if (shape_.offloads(index)) ops::cuda::AppendRows(stream, step_, kv_heads, layer.slots, k, v);
  if (layers_.HasResident(index)) {
    ops::cuda::AppendRows(stream, step_, kv_heads, layer.resident, k, v);
  }
}

void CudaDecodePath::Attend(Stream& stream, int64_t index, const MatrixView& q, const MatrixView& k,
                            const MatrixView& v, const ops::Softmax& softmax,
                            const MatrixView& out) {
  Mark(stream, Section::kManagement);
  if (decided_[static_cast<size_t>(index)]) {
    // Appending need not wait for the branches: the ring slot is none of the slots that they touch.
    Append(stream, index, k, v);
    Mark(stream, Section::kTransfer);
    pulls_.Await(stream, index);
    Mark(stream, Section::kManagement);
    if (verify_) return AttendVerified(stream, index, q, softmax, out);
    SelectResident(stream, index, q, softmax.scale);
  } else {
    pulls_.Pass(stream, index);
    if (!EncodesAside()) Spill(stream, index);
    if (shape_.offloads(index)) {
      LookUp(stream, At(index), q);
      Choose(stream, At(index), Query(&q, softmax.scale), OwnChain());
      pulls_.Pull(stream, step_, layers_, index);
    } else {
      SelectResident(stream, index, q, softmax.scale);
    }
    Append(stream, index, k, v);
  }
  AttendKept(stream, index, q, softmax, out, {.scratch = layers_.scratch()});
}

void CudaDecodePath::AttendKept(Stream& stream, int64_t index, const MatrixView& q,
                                const ops::Softmax& softmax, const MatrixView& out,
                                const Heads& heads) {
  const LiteCacheLayer& layer = layers_.at(index);
  const ops::cuda::LiteCacheShape& shape = layers_.shape();
  if (whole_ && !shape_.offloads(index)) {
    const SectionScope section(stream, Section::kAttention);
    ops::cuda::PagedAttention(stream, step_, shape_.layout.kv_heads, layer.resident, q,
                              shape_.layout.q_heads, softmax, out, heads.scratch);
    return;
  }
  ops::cuda::HybridTables tables;
  tables.slots = layer.slots;
  tables.codes = layer.codes;
  tables.resident = layer.resident;
  tables.cache_begin = shape.cache_begin;
  tables.windows = shape.windows;
  tables.dense = layer.dense;
  tables.selected = whole_ ? nullptr : layer.selected;  // null: resident heads attend every row
  tables.selected_count = layer.selected_count;
  tables.max_selected = shape.max_rows;
  tables.refresh = heads.refresh;
  tables.refreshed = heads.refreshed;
  const SectionScope section(stream, Section::kAttention);
  ops::cuda::HybridAttention(stream, step_, shape_.layout.kv_heads, tables, q,
                             shape_.layout.q_heads, softmax, out, heads.scratch);
}

std::vector<CudaBranch*> CudaDecodePath::Branches() {
  std::vector<CudaBranch*> all;
  if (decisions_) all = decisions_->Branches();
  if (corrections_) all.push_back(&corrections_->branch());
  if (encoding_) all.push_back(&*encoding_);
  return all;
}

void CudaDecodePath::AddTo(RecordingKey* key) const {
  key->Add(static_cast<uint64_t>(keeps_rows_)).Add(static_cast<uint64_t>(whole_));
  if (decisions_) key->Add(decisions_->memory());
  if (corrections_) key->Add(corrections_->memory());
  if (results_ != nullptr) key->Add(results_->memory());
}

}  // namespace litecache::kv
