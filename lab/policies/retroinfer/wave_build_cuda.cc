#include "lab/policies/retroinfer/wave_build_cuda.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "device/cuda/check.h"

namespace litecache::lab {
namespace {

// Enough lists at once to keep the GPU busy with short ones; a single long one may take more.
constexpr size_t kScratchBytes = size_t{128} << 20;
// SMs used for storing rows while a prompt's products run.
constexpr int32_t kLinkSms = 6;

// Scratch memory of a list whose rows are on the device, and of one whose rows are loaded,
// including their order.
size_t ListBytes(const RetroShape& shape, int64_t count, int64_t clusters) {
  return ops::cuda::ClusterBuildScratchBytes(shape.format, count, clusters, /*load=*/false);
}
size_t LoadedBytes(const RetroShape& shape, int64_t count, int64_t clusters) {
  return ops::cuda::ClusterBuildScratchBytes(shape.format, count, clusters, /*load=*/true) +
         static_cast<size_t>(count) * sizeof(int32_t);
}

}  // namespace

CudaWaveBuilder::CudaWaveBuilder(CudaDevice& device) : device_(device) {
  for (auto& branch : branches_) branch = std::make_unique<CudaBranch>(device, 0, /*first=*/false);
}

void CudaWaveBuilder::Fork(Stream& stream) {
  for (auto& branch : branches_) branch->Fork(stream);
}

// Fewer streams if each needs much memory and has much work between the transfers of its rows.
size_t CudaWaveBuilder::Streams(const RetroShape& shape, int64_t count, int64_t clusters) {
  return LoadedBytes(shape, count, clusters) > kScratchBytes ? 2 : kStreams;
}

int64_t CudaWaveBuilder::ListsAtOnce(const RetroShape& shape, int64_t count, int64_t clusters) {
  // All streams have work.
  constexpr auto kAll = static_cast<int64_t>(kStreams);
  return std::clamp(static_cast<int64_t>(kScratchBytes / LoadedBytes(shape, count, clusters)),
                    int64_t{1}, (shape.lists + kAll - 1) / kAll);
}

size_t CudaWaveBuilder::ScratchBytes(const RetroShape& shape, int64_t count, int64_t clusters) {
  return static_cast<size_t>(ListsAtOnce(shape, count, clusters)) *
         LoadedBytes(shape, count, clusters);
}

int64_t CudaWaveBuilder::LayerListsAtOnce(const RetroShape& shape, int64_t count,
                                          int64_t clusters) {
  return std::clamp(static_cast<int64_t>(kScratchBytes / ListBytes(shape, count, clusters)),
                    int64_t{1}, shape.layout.kv_heads);
}

size_t CudaWaveBuilder::LayerScratchBytes(const RetroShape& shape, int64_t count,
                                          int64_t clusters) {
  return static_cast<size_t>(LayerListsAtOnce(shape, count, clusters)) *
         ListBytes(shape, count, clusters);
}

size_t CudaWaveBuilder::MostBytes(const RetroShape& shape, int64_t count, int64_t clusters) {
  // With shorter parts, more lists are clustered at once.
  const auto at_once = [&](size_t list, int64_t lists) {
    return std::max(list, std::min(kScratchBytes, static_cast<size_t>(lists) * list));
  };
  const size_t loaded = at_once(LoadedBytes(shape, count, clusters),
                                (shape.lists + int64_t{kStreams} - 1) / int64_t{kStreams});
  const size_t layer = at_once(ListBytes(shape, count, clusters), shape.layout.kv_heads);
  const size_t shorter = (kStreams - 1) * std::min(kScratchBytes, loaded) + std::max(loaded, layer);
  const size_t longer = Streams(shape, count, clusters) * ScratchBytes(shape, count, clusters);
  // For one build that reorders stored rows, and those in parallel with it.
  const int64_t slots = shape.lists + RetroShape::kStagingBuffers * shape.layout.kv_heads;
  return std::max(longer, shorter) + static_cast<size_t>(slots * count) * sizeof(int32_t);
}

int32_t* CudaWaveBuilder::ReserveOrders(int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(int32_t);
  if (bytes > orders_.size()) {
    orders_ = Buffer();
    orders_ = device_.Allocate(bytes);
  }
  return orders_.as<int32_t>();
}

void* CudaWaveBuilder::Reserve(size_t bytes, size_t stream) {
  if (bytes > scratch_[stream].size()) {
    scratch_[stream] = Buffer();
    scratch_[stream] = device_.Allocate(bytes);
  }
  return scratch_[stream].data();
}

CudaWaveBuild::CudaWaveBuild(CudaWaveBuilder& builder, const RetroShape& shape,
                             WaveSequence* sequence, std::vector<WavePart> parts,
                             std::function<Tables()> tables)
    : WaveBuild(std::move(parts)),
      builder_(builder),
      shape_(shape),
      sequence_(sequence),
      make_tables_(std::move(tables)) {}

CudaWaveBuild::~CudaWaveBuild() {
  if (running_) {
    for (size_t i = 0; i < CudaWaveBuilder::kStreams; ++i) {
      cudaStreamSynchronize(AsCuda(builder_.branch(i).stream()).handle());
    }
  }
}

void CudaWaveBuild::CreateBegins() {
  LC_CHECK(begins_ == nullptr, "a build runs once");
  for (const WavePart& part : parts_) {
    begins_count_ += static_cast<size_t>(shape_.lists * part.growth.clusters);
  }
  begins_ = builder_.device().CreateMirror(begins_count_ * sizeof(int32_t));
  tables_ = make_tables_();
  running_ = true;
}

int32_t* CudaWaveBuild::BeginsOf(size_t part, int64_t list) const {
  int64_t before = 0;
  for (size_t p = 0; p < part; ++p) before += shape_.lists * parts_[p].growth.clusters;
  return begins_->device<int32_t>() + before + list * parts_[part].growth.clusters;
}

ops::cuda::ClusterBuildWork CudaWaveBuild::WorkOf(size_t part) const {
  const WavePart& of = parts_[part];
  return {.store = tables_.store,
          .index = tables_.index,
          .begin = static_cast<int32_t>(of.begin),
          .count = static_cast<int32_t>(of.end - of.begin),
          .first_cluster = static_cast<int32_t>(of.first_cluster),
          .clusters = static_cast<int32_t>(of.growth.clusters),
          .segments = static_cast<int32_t>(of.growth.segments),
          .iterations = static_cast<int32_t>(shape_.o.iterations)};
}

// ---- all lists, from the store or the ring ----

void CudaWaveBuild::Store() {
  storing_ = true;
  if (!in_step()) return Run(/*from_ring=*/false);
  LC_CHECK(stored_layers_ == shape_.layout.layers);
  begins_->Receive(builder_.branch(0).stream(), begins_count_ * sizeof(int32_t));
}

void CudaWaveBuild::Run(bool from_ring) {
  storing_ = true;
  CreateBegins();
  size_t turn = 0;
  for (size_t p = 0; p < parts_.size(); ++p) {
    const int64_t count = tokens(p), clusters = parts_[p].growth.clusters;
    const int64_t at_once = CudaWaveBuilder::ListsAtOnce(shape_, count, clusters);
    const size_t scratch = CudaWaveBuilder::ScratchBytes(shape_, count, clusters);
    const size_t streams = CudaWaveBuilder::Streams(shape_, count, clusters);
    for (int64_t list = 0; list < shape_.lists; list += at_once, ++turn) {
      const size_t stream = turn % streams;
      auto* memory = static_cast<std::byte*>(builder_.Reserve(scratch, stream));
      ops::cuda::ClusterBuildWork work = WorkOf(p);
      work.source = from_ring ? tables_.ring : tables_.store;
      work.source_list = work.first_list = static_cast<int32_t>(list);
      work.lists = static_cast<int32_t>(std::min(at_once, shape_.lists - list));
      work.begins = BeginsOf(p, list);
      work.scratch = memory;
      work.order = reinterpret_cast<int32_t*>(
          memory + static_cast<size_t>(at_once) *
                       ops::cuda::ClusterBuildScratchBytes(shape_.format, count, clusters,
                                                           /*load=*/true));
      Stream& on = builder_.branch(stream).stream();
      ops::cuda::MakeClusters(on, work);
      ops::cuda::StoreClusters(on, work);
    }
  }
  // The first stream ends last.
  CudaBranch& first = builder_.branch(0);
  for (size_t i = 1; i < CudaWaveBuilder::kStreams; ++i) first.Fork(builder_.branch(i).stream());
  begins_->Receive(first.stream(), begins_count_ * sizeof(int32_t));
}

void CudaWaveBuild::WaitAll() {
  LC_CHECK(storing_, "a build that has not begun");
  if (!running_) return;
  builder_.branch(0).stream().Synchronize();
  running_ = false;
  const auto* from = begins_->host<int32_t>();
  for (const WavePart& part : parts_) {
    for (int64_t list = 0; list < shape_.lists; ++list, from += part.growth.clusters) {
      std::copy_n(from, part.growth.clusters,
                  sequence_->begins[static_cast<size_t>(list)].begin() + part.first_cluster);
    }
  }
}

// ---- a layer at a time, within a prompt's last chunk ----

int64_t CudaWaveBuild::OrderCount(const Chunk& chunk) const {
  const int64_t slots =
      Reorders(chunk) ? shape_.lists : RetroShape::kStagingBuffers * shape_.layout.kv_heads;
  return slots * (parts_.back().end - parts_.front().begin);
}

void CudaWaveBuild::BeginInStep(const Chunk& chunk, int32_t* orders) {
  chunk_ = chunk;
  reorders_ = Reorders(chunk);
  orders_ = orders;
  CreateBegins();
  for (size_t p = 0; p < parts_.size(); ++p) ReserveLayer(p);
}

void* CudaWaveBuild::ReserveLayer(size_t part) const {
  return builder_.Reserve(
      CudaWaveBuilder::LayerScratchBytes(shape_, tokens(part), parts_[part].growth.clusters), 0);
}

// A build that may have to be undone keeps the orders of all layers; others keep those of a layer
// until the next but one.
int32_t* CudaWaveBuild::OrderOf(size_t part, int64_t list) const {
  int64_t slot = list;
  if (!reorders_) {
    const int64_t layer = list / shape_.layout.kv_heads, head = list % shape_.layout.kv_heads;
    slot = layer % RetroShape::kStagingBuffers * shape_.layout.kv_heads + head;
  }
  const int64_t before = parts_[part].begin - parts_.front().begin;
  return orders_ + order_slots() * before + slot * tokens(part);
}

ops::cuda::ClusterBuildWork CudaWaveBuild::LayerWork(size_t part, int64_t layer, int64_t first,
                                                     int64_t lists,
                                                     const ops::cuda::ListPages& rows) const {
  const int64_t list = layer * shape_.layout.kv_heads + first;
  ops::cuda::ClusterBuildWork work = WorkOf(part);
  work.source = rows;
  work.source_list = static_cast<int32_t>(first);
  work.load = false;
  work.first_list = static_cast<int32_t>(list);
  work.lists = static_cast<int32_t>(lists);
  work.begins = BeginsOf(part, list);
  work.order = OrderOf(part, list);
  return work;
}

void CudaWaveBuild::Cluster(Stream& stream, int64_t layer, const ops::cuda::ListPages& rows) {
  LC_CHECK(in_step() && layer == clustered_layers_);
  const int64_t heads = shape_.layout.kv_heads;
  for (size_t p = 0; p < parts_.size(); ++p) {
    const int64_t count = tokens(p), clusters = parts_[p].growth.clusters;
    const int64_t at_once = CudaWaveBuilder::LayerListsAtOnce(shape_, count, clusters);
    void* scratch = ReserveLayer(p);
    for (int64_t first = 0; first < heads; first += at_once) {
      ops::cuda::ClusterBuildWork work =
          LayerWork(p, layer, first, std::min(at_once, heads - first), rows);
      work.scratch = scratch;
      ops::cuda::MakeClusters(stream, work);
    }
  }
  ++clustered_layers_;
}

void CudaWaveBuild::StoreLayer(Stream& link, int64_t layer, const ops::cuda::ListPages& rows) {
  LC_CHECK(in_step() && layer == stored_layers_ && layer < clustered_layers_);
  for (size_t p = 0; p < parts_.size(); ++p) {
    const ops::cuda::ClusterBuildWork work = LayerWork(p, layer, 0, shape_.layout.kv_heads, rows);
    // Includes the chunk's rows around the parts.
    const int64_t from = p == 0 ? std::min(chunk_.past, parts_[p].begin) : parts_[p].begin;
    const int64_t to = p + 1 == parts_.size() ? chunk_.past + chunk_.rows : parts_[p].end;
    ops::cuda::StoreClusters(
        link, work, {.from = static_cast<int32_t>(from), .to = static_cast<int32_t>(to)}, kLinkSms);
  }
  ++stored_layers_;
}

void CudaWaveBuild::Undo() {
  if (!in_step()) return;
  LC_CUDA(cudaDeviceSynchronize());  // operations issued by the step
  if (!reorders_) return;
  Stream& stream = builder_.branch(0).stream();
  const int64_t lists = std::exchange(stored_layers_, 0) * shape_.layout.kv_heads;
  for (size_t p = 0; p < parts_.size(); ++p) {
    const int64_t count = tokens(p), clusters = parts_[p].growth.clusters;
    const int64_t at_once = CudaWaveBuilder::ListsAtOnce(shape_, count, clusters);
    void* scratch = builder_.Reserve(CudaWaveBuilder::ScratchBytes(shape_, count, clusters), 0);
    for (int64_t list = 0; list < lists; list += at_once) {
      ops::cuda::ClusterBuildWork work = WorkOf(p);
      work.source = tables_.store;
      work.source_list = work.first_list = static_cast<int32_t>(list);
      work.lists = static_cast<int32_t>(std::min(at_once, lists - list));
      work.order = OrderOf(p, list);
      work.scratch = scratch;
      ops::cuda::RestoreTokenOrder(stream, work);
    }
  }
  stream.Synchronize();
}

}  // namespace litecache::lab
