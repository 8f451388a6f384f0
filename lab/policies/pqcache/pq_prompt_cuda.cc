// Prompts of policy pqcache on a GPU: host threads cluster each layer's keys once they are in the
// store, and the first token after the prompt copies the codes to the device.
#include <algorithm>
#include <utility>

#include "device/cuda/check.h"
#include "lab/policies/pqcache/pq_cache_cuda.h"

namespace litecache::lab::pqcache {

// Signals that a layer's rows of a prompt's last chunk are in the store.
class LayerEvent {
 public:
  explicit LayerEvent(Stream& stream) {
    LC_CUDA(cudaEventCreateWithFlags(&event_, cudaEventBlockingSync));
    LC_CUDA(cudaEventRecord(event_, AsCuda(stream).handle()));
  }
  ~LayerEvent() { cudaEventDestroy(event_); }
  LayerEvent(const LayerEvent&) = delete;
  LayerEvent& operator=(const LayerEvent&) = delete;

  // Waits; returns the seconds since `before`, or 0 if that is null.
  double WaitSince(const LayerEvent* before) const {
    LC_CUDA(cudaEventSynchronize(event_));
    float milliseconds = 0;
    if (before != nullptr) {
      LC_CUDA(cudaEventElapsedTime(&milliseconds, before->event_, event_));
    }
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Starts clustering: threads begin with a layer when `stream` has copied its rows of the prompt's
// last chunk to the store.
void CudaPqCache::StartClustering(Stream& stream, int64_t layer) {
  if (std::none_of(growing_.begin(), growing_.end(), [](const auto& index) { return index; })) {
    return;
  }
  auto stored = std::make_shared<LayerEvent>(stream);
  const Index::Ready ready = [stored, before = stored_] { return stored->WaitSince(before.get()); };
  for (size_t i = 0; i < prefilling_.size(); ++i) {
    if (growing_[i] == nullptr) continue;
    const StepSequence& part = prefilling_[i];
    sequences_.StartLayer(part.id, part.past + part.rows, layer, ready, growing_[i].get());
  }
  stored_ = std::move(stored);
}

void CudaPqCache::PromptAttended(Stream&, int64_t layer, const MatrixView&, const MatrixView&) {
  StartClustering(link_.stream(), layer);
}

void CudaPqCache::PromptStored(Stream& stream, int64_t layer, const MatrixView&,
                               const MatrixView&) {
  StartClustering(stream, layer);
}

// Copies the centroids and codes that the prompt's clustering has computed.
void CudaPqCache::FillCodes(Stream& stream, int64_t layer, const StepSequence& part) {
  Sequence& sequence = sequences_.Get(part.id);
  LayerState& state = sequence.layers[static_cast<size_t>(layer)];
  if (state.filled) return;
  Index& index = *sequence.index;
  index.Wait(layer);
  const int64_t begin = std::max(sequences_.codes().Length(sequence.codes), shape_.sink);
  const int64_t end = std::min(index.tokens(), part.past);
  const int64_t pages = begin < end ? shape_.CodeTable().BlocksFor(end) : 0;
  const auto page_bytes = static_cast<size_t>(shape_.code_tokens / ops::PqFormat::kBlockTokens *
                                              shape_.codes.block_bytes());
  const size_t head_bytes = shape_.codebook_bytes() + static_cast<size_t>(pages) * page_bytes;
  const size_t bytes = static_cast<size_t>(shape_.layout.kv_heads) * head_bytes;
  LC_CUDA(cudaStreamSynchronize(AsCuda(stream).handle()));  // the previous layer's have been sent
  if (packed_.size() < bytes) {
    packed_ = Buffer();
    packed_ = host_.Allocate(bytes);
  }
  for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
    std::byte* own = packed_.as<std::byte>() + static_cast<size_t>(head) * head_bytes;
    const std::vector<float>& centroids = index.Centroids(layer, head);
    LC_CHECK(centroids.size() * sizeof(float) == shape_.codebook_bytes());
    std::copy(centroids.begin(), centroids.end(), reinterpret_cast<float*>(own));
    copies_.Add(sequences_.Codebook(sequence, layer, head), own, shape_.codebook_bytes());
    own += shape_.codebook_bytes();
    const ops::PagedMetadata codes = sequences_.CodesOf(sequence, layer, head);
    std::vector<std::byte*> packed;
    for (int64_t page = 0; page < pages; ++page, own += page_bytes) {
      packed.push_back(own);
      copies_.Add(codes.pages[page], own, page_bytes);
    }
    const ops::PagedMetadata target{packed.data(), shape_.code_tokens};
    for (int64_t s = 0; s < shape_.codes.subspaces && pages > 0; ++s) {
      const std::vector<uint8_t>& labels = index.Codes(layer, head, s);
      for (int64_t t = begin; t < end; ++t) {
        *shape_.codes.Code(target, t, s) = labels[static_cast<size_t>(t - shape_.sink)];
      }
    }
  }
  copies_.Send(stream);
  state.filled = true;
}

}  // namespace litecache::lab::pqcache
