#include "kv/cuda/retroinfer/wave_build.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "device/cuda/check.h"

namespace litecache::kv {
namespace {

// Enough lists at once to keep the GPU busy with short ones; a long one takes more by itself.
constexpr size_t kScratchBytes = size_t{128} << 20;

}  // namespace

CudaWaveBuilder::CudaWaveBuilder(CudaDevice& device) : device_(device) {
  for (auto& branch : branches_) branch = std::make_unique<CudaBranch>(device, 0, /*first=*/false);
}

void CudaWaveBuilder::Fork(Stream& stream) {
  for (auto& branch : branches_) branch->Fork(stream);
}

// Fewer where each takes much memory, and has much to do between its rows' ways.
size_t CudaWaveBuilder::Streams(const RetroShape& shape, int64_t count, int64_t clusters) {
  const size_t list = ops::cuda::ClusterBuildScratchBytes(shape.format, count, clusters);
  return list > kScratchBytes ? 2 : kStreams;
}

int64_t CudaWaveBuilder::ListsAtOnce(const RetroShape& shape, int64_t count, int64_t clusters) {
  const size_t list = ops::cuda::ClusterBuildScratchBytes(shape.format, count, clusters);
  // All streams have something to do.
  constexpr auto kAll = static_cast<int64_t>(kStreams);
  return std::clamp(static_cast<int64_t>(kScratchBytes / list), int64_t{1},
                    (shape.lists + kAll - 1) / kAll);
}

size_t CudaWaveBuilder::ScratchBytes(const RetroShape& shape, int64_t count, int64_t clusters) {
  return static_cast<size_t>(ListsAtOnce(shape, count, clusters)) *
         ops::cuda::ClusterBuildScratchBytes(shape.format, count, clusters);
}

size_t CudaWaveBuilder::MostBytes(const RetroShape& shape, int64_t count, int64_t clusters) {
  const size_t list = ops::cuda::ClusterBuildScratchBytes(shape.format, count, clusters);
  // Of shorter parts more lists are clustered at once.
  const size_t lists = (static_cast<size_t>(shape.lists) + kStreams - 1) / kStreams;
  const size_t shorter = kStreams * std::min(kScratchBytes, lists * list);
  return std::max(Streams(shape, count, clusters) * ScratchBytes(shape, count, clusters), shorter);
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
      tables_(std::move(tables)) {}

CudaWaveBuild::~CudaWaveBuild() {
  if (running_) {
    for (size_t i = 0; i < CudaWaveBuilder::kStreams; ++i) {
      cudaStreamSynchronize(AsCuda(builder_.branch(i).stream()).handle());
    }
  }
}

void CudaWaveBuild::Run(bool from_ring) {
  LC_CHECK(begins_ == nullptr, "a build runs once");
  size_t count = 0;
  for (const WavePart& part : parts_) {
    count += static_cast<size_t>(shape_.lists * part.growth.clusters);
  }
  begins_ = builder_.device().CreateMirror(count * sizeof(int32_t));
  const Tables tables = tables_();
  running_ = true;
  auto* begins = begins_->device<int32_t>();
  size_t turn = 0;
  for (const WavePart& part : parts_) {
    const int64_t tokens = part.end - part.begin, clusters = part.growth.clusters;
    const int64_t at_once = CudaWaveBuilder::ListsAtOnce(shape_, tokens, clusters);
    const size_t scratch = CudaWaveBuilder::ScratchBytes(shape_, tokens, clusters);
    const size_t streams = CudaWaveBuilder::Streams(shape_, tokens, clusters);
    for (int64_t list = 0; list < shape_.lists; list += at_once, ++turn) {
      const size_t stream = turn % streams;
      ops::cuda::BuildClusters(
          builder_.branch(stream).stream(),
          {.source = from_ring ? tables.ring : tables.store,
           .store = tables.store,
           .index = tables.index,
           .first_list = static_cast<int32_t>(list),
           .lists = static_cast<int32_t>(std::min(at_once, shape_.lists - list)),
           .begin = static_cast<int32_t>(part.begin),
           .count = static_cast<int32_t>(tokens),
           .first_cluster = static_cast<int32_t>(part.first_cluster),
           .clusters = static_cast<int32_t>(clusters),
           .segments = static_cast<int32_t>(part.growth.segments),
           .iterations = static_cast<int32_t>(shape_.o.iterations),
           .begins = begins + list * clusters,
           .scratch = builder_.Reserve(scratch, stream)});
    }
    begins += shape_.lists * clusters;
  }
  // The first stream ends last.
  CudaBranch& first = builder_.branch(0);
  for (size_t i = 1; i < CudaWaveBuilder::kStreams; ++i) first.Fork(builder_.branch(i).stream());
  begins_->Receive(first.stream(), count * sizeof(int32_t));
}

void CudaWaveBuild::WaitAll() {
  LC_CHECK(begins_ != nullptr, "a build that has not begun");
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

}  // namespace litecache::kv
