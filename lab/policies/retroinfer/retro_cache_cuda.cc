#include "lab/policies/retroinfer/retro_cache_cuda.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "device/cuda/check.h"
#include "device/device_error.h"
#include "kv/transfer/transfer_engine_cuda.h"
#include "lab/policies/retroinfer/retro_cache.h"
#include "ops/linear/linear_cuda.h"

namespace litecache::lab {
namespace {

using ops::cuda::RowRange;
using ops::cuda::RowTable;
using ops::cuda::StepView;
using ops::cuda::WaveLayer;

// Large enough for several threads to page in: the store has gigabytes.
constexpr uint64_t kHostSlab = uint64_t{64} << 20;

}  // namespace

CudaRetroCache::CudaRetroCache(CudaDevice& device, const RetroShape& shape, const TierBytes& budget,
                               const ForcedSelection* forced)
    : RetroHost(device),
      WaveCache(device, RetroHost::store, shape, budget, kHostSlab),
      gpu_(device),
      work_(device, RetroHost::host, shape_),
      answers_(RetroHost::host, shape_, work_, DefaultTransferThreads(),
               [this](int64_t layer, std::span<const WaveUpdate> updates, const WaveLayer& told) {
                 Note(layer, updates, told);
               }),
      check_answers_(std::make_shared<const std::function<void()>>([this] { CheckAnswers(); })),
      block_(device),
      fill_(device),
      builder_(device),
      link_(device, kMarks, /*first=*/true),
      prefill_(
          shape.layout, [this](int64_t layer) { return Store(layer); },
          [this](int64_t layer) { return Staging(layer); }, link_, kFetched) {
  LC_CHECK(shape.on_gpu);
  if (shape.layout.head_dim % 2 != 0) {
    throw Unsupported("KV policy retroinfer on a GPU: an odd head_dim ({})", shape.layout.head_dim);
  }
  std::vector<int32_t> lists(static_cast<size_t>(shape.lists));
  std::iota(lists.begin(), lists.end(), 0);
  lists_ = device.Allocate(lists.size() * sizeof(int32_t));
  device.Upload(lists_.data(), lists.data(), lists_.size());
  if (forced != nullptr) {
    forced_.emplace(device, shape.layout, forced->period(), forced->recorded_clusters(),
                    forced->ClusterOrder());
  }
}

CudaRetroCache::~CudaRetroCache() {
  try {
    Settle();
  } catch (...) {  // the caches are not needed any more
  }
  link_.Reset();
  for (auto& [id, sequence] : sequences_) {
    for (StagedPages& staged : Of(*sequence).staged) staged.Drop(device_);
  }
  sequences_.clear();  // their builds must end before the pages are destroyed
}

// ---- sequences ----

std::unique_ptr<WaveSequence> CudaRetroCache::NewSequence(const WaveSequence* parent) {
  if (parent == nullptr) return std::make_unique<CudaWaveSequence>(shape_, device_);
  auto fork = std::make_unique<CudaWaveSequence>(shape_, device_, *parent);
  fork->forked = true;
  return fork;
}

SequenceId CudaRetroCache::Fork(SequenceId parent) {
  UndoBuilds();
  const SequenceId id = WaveCache::Fork(parent);
  Of(parent).forked = true;
  return id;
}

void CudaRetroCache::Release(SequenceId id) {
  tokens_.Length(id);  // throws if the sequence does not exist
  Settle();
  link_.Reset();  // after a failed step
  for (StagedPages& staged : Of(id).staged) staged.Drop(device_);
  std::erase(in_step_, static_cast<CudaWaveBuild*>(Of(id).build.get()));
  WaveCache::Release(id);
}

// ---- the arguments of kernels ----

RowTable CudaRetroCache::Store(int64_t layer) const {
  return {.table = ops::cuda::kStore,
          .lists = static_cast<int32_t>(shape_.lists),
          .page_rows = static_cast<int32_t>(shape_.pages.page_tokens),
          .format = shape_.format,
          .list_of_head = lists_.as<int32_t>() + layer * shape_.layout.kv_heads};
}

RowTable CudaRetroCache::Rows(int64_t layer) const {
  RowTable table = Store(layer);
  table.table = kWaveRows;
  return table;
}

RowTable CudaRetroCache::Steady(int64_t layer) const {
  RowTable table = Rows(layer);
  table.sink = static_cast<int32_t>(shape_.sink);
  table.ring = static_cast<int32_t>(shape_.ring());
  return table;
}

RowTable CudaRetroCache::Staging(int64_t layer) const {
  RowTable table = Store(0);
  table.table = kWaveStaging[layer % RetroShape::kStagingBuffers];
  table.lists = static_cast<int32_t>(shape_.layout.kv_heads);
  return table;
}

WaveLayer CudaRetroCache::Layer(int64_t layer) const {
  WaveLayer of = work_.Layer(layer);
  of.sequences = reinterpret_cast<const ops::cuda::WaveSequence*>(waves_->device() + kWaveHeader);
  of.first_number = waves_->device<const uint64_t>();
  of.number = static_cast<int32_t>(layer);
  of.mailbox = choosing_ ? answers_.mailbox() : nullptr;
  of.index = Store(layer);
  of.index.table = kWaveIndex;
  of.index.page_rows = static_cast<int32_t>(shape_.page_clusters);
  of.rows = Rows(layer);
  of.store = Store(layer);
  return of;
}

// ---- steps ----

void CudaRetroCache::BeginStep(const Step& step) {
  UndoBuilds();
  WaveCache::BeginStep(step);
  link_.Reset();  // after a failed step
  started_ = false;
  waiting_ = 0;
  block_.Begin(step.decode_rows, static_cast<int64_t>(step.sequences.size()) - step.decode_rows);
  BeginDecoding();
  BeginPrompts();
}

// The first operation of a step.
void CudaRetroCache::Start(Stream& stream) {
  if (std::exchange(started_, true)) return;
  AsCuda(stream).AddCheck(check_answers_);
  issued_on_ = AsCuda(stream).handle();
  answers_.set_stream(issued_on_);
  // Admitted rows are copied in parallel with the products. Comes before anything is recorded: a
  // sequence's first steps are not recorded.
  ops::cuda::ShareGpu(stream);
  block_.Send(stream);
  if (!decoding_.empty()) {
    waves_->Send(stream, kWaveHeader + decoding_.size() * sizeof(ops::cuda::WaveSequence));
  }
  if (filling_) fill_.Send(stream);
  // Copies generated rows that belong to no cluster to the store, where a prompt's chunk reads
  // them.
  const uint64_t row_bytes = shape_.format.row_bytes();
  for (int64_t i = 0; i < block_.prefilling(); ++i) {
    const StepView ring = block_.Ring(i);
    if (ring.max_rows == 0) continue;
    for (int64_t layer = 0; layer < shape_.layout.layers; ++layer) {
      ops::cuda::CopyRows(stream, ring, shape_.layout.kv_heads, Steady(layer), Store(layer),
                          {.kind = RowRange::kRing});
    }
    const auto rows = static_cast<uint64_t>(ring.max_rows * shape_.lists);
    stats_.spill.rows += rows;
    stats_.spill.bytes += rows * row_bytes;
  }
}

void CudaRetroCache::Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                            const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
                            const MatrixView& out) {
  LC_CHECK(layer >= 0 && layer < shape_.layout.layers);
  LC_CHECK(decoding_.size() + prefilling_.size() == step.sequences.size(),
           "Attend() outside of BeginStep/EndStep");
  RefuseCap(softmax);
  Start(stream);
  // Allocation waits for the device, which waits for answers once a layer has decoded.
  if (layer == 0) BeginBuilds();
  if (!decoding_.empty()) Decode(stream, layer, q, k, v, softmax, out);
  prefill_.Attend(stream, block_, layer, q, k, v, softmax, out, work_.scratch(), this);
  if (layer + 1 == shape_.layout.layers) {
    link_.JoinAll(stream);
    // Rows stored by a prompt's chunk are clustered after it.
    if (!prefilling_.empty()) builder_.Fork(stream);
  }
  // For a step that is issued, not replayed: no answers are left for which another thread that
  // waits for the device would wait in vain.
  answers_.Serve(waiting_);
}

void CudaRetroCache::Settle() { answers_.Serve(waiting_); }

void CudaRetroCache::EndStep(const Step& step) {
  answers_.Serve(shape_.layout.layers);
  const uint64_t row_bytes = shape_.format.row_bytes();
  const auto lists = static_cast<uint64_t>(shape_.lists);
  for (const View& view : decoding_) {
    const WaveSequence& s = *view.sequence;
    // Exact rows plus the retrieved ones; centroids, and the sums of the estimated clusters.
    const int64_t steady =
        std::min(shape_.sink, view.n()) + std::max<int64_t>(view.n() - s.indexed_end, 0);
    stats_.bytes_read += static_cast<uint64_t>(steady) * lists * row_bytes;
    stats_.bytes_written += lists * row_bytes;
    stats_.bytes_scored += static_cast<uint64_t>(s.clusters + s.estimated) * lists * row_bytes / 2;
  }
  for (const View& view : prefilling_) {
    const auto rows = static_cast<uint64_t>(view.part.rows) * lists;
    stats_.bytes_read += static_cast<uint64_t>(view.n()) * lists * row_bytes;
    stats_.bytes_written += rows * row_bytes;
    stats_.prefill.rows += rows;
    stats_.prefill.bytes += rows * row_bytes;
  }
  WaveCache::EndStep(step);
  in_step_.clear();
}

void CudaRetroCache::Note(int64_t layer, std::span<const WaveUpdate> updates,
                          const WaveLayer& told) {
  const uint64_t row_bytes = shape_.format.row_bytes();
  const auto heads = static_cast<size_t>(shape_.layout.kv_heads);
  for (size_t i = 0; i < updates.size(); ++i) {
    const WaveUpdate& update = updates[i];
    HeadCounters& head = heads_[static_cast<size_t>(update.list)];
    head.lookups += update.retrieved.size();
    head.hits += update.hits.size();
    head.rows_selected += update.rows;
    head.rows_moved += update.miss_rows;
    stats_.miss.rows += update.miss_rows;
    stats_.miss.bytes += update.miss_rows * row_bytes;
    stats_.bytes_read += update.rows * row_bytes;
    if (choices_ == nullptr || update.sequence->clusters == 0) continue;
    const ops::cuda::WaveChoice& choice = told.told_choices[i];
    const int32_t* ids = update.retrieved.data();
    (*choices_)[{decoding_[i / heads].part.id, layer, static_cast<int64_t>(i % heads)}] = {
        .retrieved = {ids, ids + choice.retrieved},
        .estimated = {ids + choice.retrieved, ids + choice.count},
        .hits = update.hits};
  }
}

void CudaRetroCache::CheckAnswers() {
  if (answers_.TakeFault() == 0) return;
  // The rows that a cache was about to admit are lost.
  for (auto& [id, sequence] : sequences_) {
    for (BlockCache& cache : sequence->caches) cache.Clear();
    Of(*sequence).stale_tables = true;
  }
  throw DeviceError(
      "KV policy retroinfer: the host did not answer within 5 s which clusters the block caches "
      "admit; is the process short of CPU time?");
}

uint64_t CudaRetroScratchBytes(const RetroShape& shape, int64_t sequences, int64_t tokens) {
  const int64_t clusters = shape.ClusterRoom(tokens);
  // For every list: the first rows of clusters, and the tables of cached blocks.
  const int64_t words = 2 * clusters + shape.CacheBlocks(shape.NprobeRoom(tokens));
  const auto tables = static_cast<uint64_t>(sequences * shape.lists * words) * sizeof(int32_t);
  const uint64_t build = clusters == 0 ? 0 : CudaWaveBuilder::MostBytes(shape, tokens, clusters);
  return RetroWork::Bytes(shape, sequences, tokens) + tables + build;
}

std::unique_ptr<Cache> CreateCudaRetroCache(Device& device, const RetroShape& shape,
                                            const TierBytes& budget,
                                            const ForcedSelection* forced) {
  LC_CHECK(device.type() == DeviceType::kCuda);
  return std::make_unique<CudaRetroCache>(static_cast<CudaDevice&>(device), shape, budget, forced);
}

}  // namespace litecache::lab
