// A prompt's chunks on a GPU: staging pages, and the clustering of their rows.
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cuda/check.h"
#include "lab/policies/retroinfer/retro_cache_cuda.h"

namespace litecache::lab {
namespace {

using ops::cuda::ListPages;
using ops::cuda::RowTable;

// A later prompt of a sequence has many short parts, for whose kernels one layer has too few rows:
// with more parts than this, all layers are clustered together after the step.
constexpr size_t kMostParts = 8;

}  // namespace

std::unique_ptr<WaveBuild> CudaRetroCache::NewBuild(SequenceId id, WaveSequence* sequence,
                                                    std::vector<WavePart> parts) {
  return std::make_unique<CudaWaveBuild>(
      builder_, shape_, sequence, std::move(parts), [this, id, sequence] {
        CudaWaveSequence& of = Of(*sequence);
        SendPages(id, &of);
        const auto table = [&](const DevicePages& pages, int64_t page_rows, bool ring) {
          return ListPages{.pages = pages.device(),
                           .lists = static_cast<int32_t>(shape_.lists),
                           .page_rows = static_cast<int32_t>(page_rows),
                           .format = shape_.format,
                           .sink = ring ? static_cast<int32_t>(shape_.sink) : 0,
                           .ring = ring ? static_cast<int32_t>(shape_.ring()) : 0};
        };
        return CudaWaveBuild::Tables{.store = table(of.store, shape_.pages.page_tokens, false),
                                     .ring = table(of.rows, shape_.pages.page_tokens, true),
                                     .index = table(of.index_pages, shape_.page_clusters, false)};
      });
}

void CudaRetroCache::RunBuild(SequenceId, WaveSequence* sequence, bool from_ring) {
  LC_CUDA(cudaDeviceSynchronize());  // waits for earlier steps, which wrote these rows
  static_cast<CudaWaveBuild&>(*sequence->build).Run(from_ring);
}

int64_t CudaRetroCache::MissingStaging(const StepSequence& part) const {
  if (part.decode) return 0;
  const auto& sequence = static_cast<const CudaWaveSequence&>(*sequences_.at(part.id));
  int64_t pages = 0;
  for (const StagedPages& staged : sequence.staged) {
    pages += staged.Missing(shape_.layout.kv_heads, shape_.StagingPages(part.past + part.rows));
  }
  return pages;
}

void CudaRetroCache::TakeStaging(const StepSequence& part) {
  for (StagedPages& staged : Of(part.id).staged) {
    if (part.decode) {
      staged.Drop(device_);
      staged = StagedPages();
    } else {
      staged.Grow(device_, shape_.layout.kv_heads, shape_.StagingPages(part.past + part.rows));
    }
  }
}

void CudaRetroCache::BeginPrompts() {
  for (size_t i = 0; i < prefilling_.size(); ++i) {
    const View& view = prefilling_[i];
    CudaWaveSequence& s = Of(*view.sequence);
    SendPages(view.part.id, &s);
    ops::cuda::StepSequence target = {.first_row = static_cast<int32_t>(view.part.first_row),
                                      .rows = static_cast<int32_t>(view.part.rows),
                                      .past = static_cast<int32_t>(view.part.past),
                                      .stored = static_cast<int32_t>(store_.Length(view.part.id))};
    s.PutPages(&target);
    block_.at(block_.decoding() + static_cast<int64_t>(i)) = target;
    block_.ring(static_cast<int64_t>(i)) = target;
  }
}

// A build whose rows are partly in the store keeps the orders of all layers until the step is known
// to succeed; further such builds in the same step run after it.
void CudaRetroCache::BeginBuilds() {
  std::vector<std::pair<CudaWaveBuild*, CudaWaveBuild::Chunk>> builds;
  bool reorders = false;
  int64_t orders = 0;
  for (const View& view : prefilling_) {
    auto* build = static_cast<CudaWaveBuild*>(view.sequence->build.get());
    if (build == nullptr || build->storing() || build->parts().size() > kMostParts) continue;
    const CudaWaveBuild::Chunk chunk{
        .past = view.part.past, .rows = view.part.rows, .stored = store_.Length(view.part.id)};
    if (build->Reorders(chunk) && std::exchange(reorders, true)) continue;
    builds.emplace_back(build, chunk);
    orders += build->OrderCount(chunk);
  }
  if (builds.empty()) return;
  int32_t* next = builder_.ReserveOrders(orders);
  for (const auto& [build, chunk] : builds) {
    build->BeginInStep(chunk, next);
    in_step_.push_back(build);
    next += build->OrderCount(chunk);
  }
}

// Undoes all of them before another step has orders.
void CudaRetroCache::UndoBuilds() {
  if (in_step_.empty()) return;
  Settle();
  for (CudaWaveBuild* build : std::exchange(in_step_, {})) build->Undo();
}

CudaWaveBuild* CudaRetroCache::BuildInStep(int64_t chunk) {
  auto* build =
      static_cast<CudaWaveBuild*>(prefilling_[static_cast<size_t>(chunk)].sequence->build.get());
  return build != nullptr && !build->storing() && build->in_step() ? build : nullptr;
}

ListPages CudaRetroCache::StagedRows(int64_t layer, int64_t chunk) {
  const CudaWaveSequence& sequence = Of(*prefilling_[static_cast<size_t>(chunk)].sequence);
  const RowTable table = Staging(layer);
  return {.pages = sequence.staged[layer % RetroShape::kStagingBuffers].device(),
          .lists = table.lists,
          .page_rows = table.page_rows,
          .format = table.format};
}

bool CudaRetroCache::Arrange(Stream& stream, int64_t layer, int64_t chunk) {
  CudaWaveBuild* build = BuildInStep(chunk);
  if (build == nullptr) return false;
  builder_.branch(0).Fork(stream);
  build->Cluster(builder_.branch(0).stream(), layer, StagedRows(layer, chunk));
  return true;
}

void CudaRetroCache::Store(CudaBranch& link, int64_t layer, int64_t chunk) {
  link.Fork(builder_.branch(0).stream());
  BuildInStep(chunk)->StoreLayer(link.stream(), layer, StagedRows(layer, chunk));
}

void CudaRetroCache::StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView&,
                               const MatrixView& k, const MatrixView& v) {
  LC_CHECK(layer >= 0 && layer < shape_.layout.layers && step.decode_rows == 0);
  Start(stream);
  prefill_.Store(stream, block_, layer, k, v);
  if (layer + 1 == shape_.layout.layers) builder_.Fork(stream);
}

}  // namespace litecache::lab
