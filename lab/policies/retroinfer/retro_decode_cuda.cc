// Decode steps of policy retroinfer on a GPU.
#include <algorithm>
#include <utility>
#include <vector>

#include "device/cuda/check.h"
#include "device/recording_key.h"
#include "device/sections.h"
#include "lab/policies/retroinfer/retro_cache_cuda.h"
#include "ops/attention/attention_cuda.h"
#include "ops/attention/listed_cuda.h"
#include "ops/slots/litecache_layer_cuda.h"
#include "ops/transfer/pull_rows_cuda.h"

namespace litecache::lab {
namespace {

using ops::cuda::RowRange;
using ops::cuda::StepView;
using ops::cuda::WaveLayer;

// As for transfer engine gpu-pull: 10 blocks reached 25 GB/s (lab/notes/gpu/other-policies.md).
constexpr int32_t kPullBlocks = 48;
// Timeout of the device for an answer that takes tens of microseconds.
constexpr uint64_t kDeadline = uint64_t{5} * 1000 * 1000 * 1000;

bool Capturing(CUstream_st* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  LC_CUDA(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

void CudaRetroCache::BeginDecoding() {
  fills_.assign(decoding_.size(), 0);
  int64_t longest = 0, fills = 0;
  choosing_ = false;
  std::vector<CudaWaveSequence*> sequences;
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const View& view = decoding_[i];
    CudaWaveSequence& s = Of(*view.sequence);
    sequences.push_back(&s);
    // Clusters in use must be complete; others need not be.
    if (s.build != nullptr && s.pending.empty()) s.build->WaitAll();
    SendPages(view.part.id, &s);
    s.SendTables(gpu_, shape_);
    longest = std::max(longest, view.n());
    choosing_ = choosing_ || s.clusters > 0;
    fills_[i] = std::find(s.filled.begin(), s.filled.end(), uint8_t{0}) != s.filled.end();
    fills += fills_[i];
  }
  context_ = ContextBucket(longest);
  work_.Reserve(std::vector<const WaveSequence*>(sequences.begin(), sequences.end()));
  wave_ = work_.sizes();
  wave_.tell_all = choices_ != nullptr;
  answers_.Begin(std::move(sequences), choosing_);
  filling_ = fills > 0;
  if (filling_) fill_.Begin(2 * fills, 0);
  const auto count = static_cast<int64_t>(decoding_.size());
  if (count > wave_room_) {
    wave_room_ = std::max(count, 2 * wave_room_);
    waves_.reset();
    waves_ = gpu_.CreateMirror(kWaveHeader +
                               static_cast<size_t>(wave_room_) * sizeof(ops::cuda::WaveSequence));
  }
  if (count == 0) return;
  *waves_->host<uint64_t>() = answers_.first_number();
  auto* waves = reinterpret_cast<ops::cuda::WaveSequence*>(waves_->host() + kWaveHeader);
  int64_t next_fill = 0;
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const View& view = decoding_[i];
    const CudaWaveSequence& s = Of(*view.sequence);
    ops::cuda::StepSequence target = {.first_row = static_cast<int32_t>(view.part.first_row),
                                      .rows = 1,
                                      .past = static_cast<int32_t>(view.part.past),
                                      .stored = static_cast<int32_t>(view.part.past)};
    s.PutPages(&target);
    block_.at(static_cast<int64_t>(i)) = target;
    waves[i] = s.View(shape_);
    if (fills_[i]) BeginFilling(i, &next_fill);
  }
}

// Tokens [stored, past) of each entry are copied; rows that are not in the store are in their
// slots.
void CudaRetroCache::BeginFilling(size_t decoding, int64_t* next) {
  const View& view = decoding_[decoding];
  const int64_t stored = std::min(store_.Length(view.part.id), view.part.past);
  ops::cuda::StepSequence target = block_.at(static_cast<int64_t>(decoding));
  target.stored = 0;
  target.past = static_cast<int32_t>(std::min(shape_.sink, stored));
  fill_.at((*next)++) = target;
  target.stored = static_cast<int32_t>(std::min(view.sequence->indexed_end, stored));
  target.past = static_cast<int32_t>(stored);
  fill_.at((*next)++) = target;
}

std::optional<uint64_t> CudaRetroCache::ReplayKey(const Step&) const {
  if (decoding_.empty() || !prefilling_.empty() || filling_) return std::nullopt;
  // The arguments of the operations.
  RecordingKey key;
  key.Add(block_.memory()).Add(*waves_).Add(work_.serial()).Add(context_);
  return key.Add(int64_t{choosing_}).Add(int64_t{wave_.tell_all}).value();
}

void CudaRetroCache::Fill(Stream& stream, int64_t layer) {
  if (!filling_) return;
  ops::cuda::CopyRows(stream, fill_.Decoding(context_), shape_.layout.kv_heads, Store(layer),
                      Steady(layer), {.kind = RowRange::kRing});
  int64_t rows = 0;
  for (int64_t i = 0; i < fill_.decoding(); ++i) rows += fill_.at(i).past - fill_.at(i).stored;
  for (size_t i = 0; i < decoding_.size(); ++i) {
    if (fills_[i]) decoding_[i].sequence->filled[static_cast<size_t>(layer)] = 1;
  }
  const auto moved = static_cast<uint64_t>(rows * shape_.layout.kv_heads);
  stats_.fill.rows += moved;
  stats_.fill.bytes += moved * shape_.format.row_bytes();
}

void CudaRetroCache::Choose(Stream& stream, int64_t index, const MatrixView& q, float scale) {
  const StepView step = block_.Decoding(context_);
  const WaveLayer layer = Layer(index);
  ops::cuda::SelectClusters(stream, step, wave_, layer, q, scale, work_.scratch());
  if (forced_) {
    Mark(stream, Section::kOverride);
    ops::cuda::ForceClusters(stream, step, wave_, layer,
                             {.order = forced_->Layer(index),
                              .recorded = static_cast<int32_t>(forced_->of_head()),
                              .steps = static_cast<int32_t>(forced_->steps()),
                              .stride = forced_->stride()});
  }
}

void CudaRetroCache::Fetch(const WaveLayer& layer) {
  const ops::cuda::LiteCacheShape shape{.kv_heads = wave_.kv_heads,
                                        .group = wave_.group,
                                        .head_dim = wave_.head_dim,
                                        .max_rows = wave_.max_rows};
  ops::cuda::LiteCacheLayer moves;
  moves.slots = layer.rows;
  moves.store = layer.store;
  moves.refresh = const_cast<int32_t*>(work_.ones());
  moves.moved_positions = layer.fetched_sources;
  moves.moved_slots = layer.fetched_targets;
  moves.moved_count = layer.fetched_count;
  ops::cuda::PullRows(link_.stream(), block_.Decoding(context_), shape, moves, kPullBlocks);
}

void CudaRetroCache::Admit(int64_t layer) {
  ops::cuda::AdmitClusters(link_.stream(), block_.Decoding(context_), wave_, Layer(layer),
                           kDeadline);
  if (!Capturing(issued_on_)) waiting_ = layer + 1;
}

void CudaRetroCache::Decode(Stream& stream, int64_t index, const MatrixView& q, const MatrixView& k,
                            const MatrixView& v, const ops::Softmax& softmax,
                            const MatrixView& out) {
  const Layout& layout = shape_.layout;
  const StepView step = block_.Decoding(context_);
  const WaveLayer layer = Layer(index);
  Mark(stream, Section::kManagement);
  Fill(stream, index);
  if (choosing_) {
    Mark(stream, Section::kRetrieval);
    Choose(stream, index, q, softmax.scale);
    Mark(stream, Section::kManagement);
  }
  ops::cuda::ListWaveRows(stream, step, wave_, layer);
  if (choosing_) {
    link_.Fork(stream);
    Fetch(layer);
    link_.Mark(kArrived);
  }
  ops::cuda::AppendRows(stream, step, layout.kv_heads, Steady(index), k, v);
  if (choosing_) {
    Mark(stream, Section::kRetrieval);
    ops::cuda::EstimateClusters(stream, step, wave_, layer);
    Mark(stream, Section::kTransfer);
    link_.Join(stream, kArrived);
  }
  {
    const SectionScope section(stream, Section::kAttention);
    ops::cuda::ListedAttention(stream, step, layout.kv_heads, layer.rows,
                               {layer.leading, layer.listed, layer.listed_count, wave_.max_rows}, q,
                               layout.q_heads, softmax, out, choosing_ ? work_.log_sums() : nullptr,
                               work_.scratch());
    if (choosing_) ops::cuda::MergeEstimate(stream, step, wave_, layer, work_.log_sums(), out);
  }
  if (!choosing_) return;
  // In parallel with everything until the next layer's rows arrive in the execution buffer.
  link_.Fork(stream);
  Admit(index);
}

}  // namespace litecache::lab
