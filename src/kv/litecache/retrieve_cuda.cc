#include "kv/litecache/retrieve_cuda.h"

#include "base/error.h"
#include "kv/retrieve/retrievers.h"
#include "ops/select/encode_cuda.h"
#include "ops/select/hash_softmax_select_cuda.h"
#include "ops/select/select_cuda.h"

namespace litecache::kv {
namespace {

using ops::cuda::LiteCacheLayer;
using ops::cuda::LiteCacheShape;
using ops::cuda::SelectQuery;
using ops::cuda::StepView;

// A retriever's matrices in device memory, [layers][kv_heads][...] f32.
class DeviceMatrices {
 public:
  DeviceMatrices(Device& device, const Layout& layout, const Retriever& retriever)
      : layer_values_(retriever.Weights(0).size()),
        memory_(
            device.Allocate(static_cast<size_t>(layout.layers) * layer_values_ * sizeof(float))) {
    for (int64_t layer = 0; layer < layout.layers; ++layer) {
      const std::span<const float> values = retriever.Weights(layer);
      device.Upload(memory_.as<float>() + static_cast<size_t>(layer) * layer_values_, values.data(),
                    values.size_bytes());
    }
  }
  const float* Of(int64_t layer) const {
    return memory_.as<const float>() + static_cast<size_t>(layer) * layer_values_;
  }

 private:
  size_t layer_values_;
  Buffer memory_;
};

class CudaExact final : public CudaRetriever {
 public:
  void Encode(Stream&, int64_t, const StepView&, const LiteCacheShape&, const LiteCacheLayer&,
              const MatrixView*) override {}
  void Select(Stream& stream, int64_t, const StepView& step, const LiteCacheShape& shape,
              const LiteCacheLayer& heads, const SelectQuery& query, void* scratch) override {
    ops::cuda::ExactSelect(stream, step, shape, heads, query, scratch);
  }
};

class CudaHata final : public CudaRetriever {
 public:
  CudaHata(Device& device, const Layout& layout, const KvOptions& options,
           const Retriever& retriever)
      : format_{.bits = options.hata_bits, .norms = options.hata_norms},
        score_(HataScore(options)),
        weights_(device, layout, retriever) {}
  void Encode(Stream& stream, int64_t layer, const StepView& step, const LiteCacheShape& shape,
              const LiteCacheLayer& heads, const MatrixView* k) override {
    ops::cuda::HashEncode(stream, step, shape, heads, format_, weights_.Of(layer), k);
  }
  void Select(Stream& stream, int64_t layer, const StepView& step, const LiteCacheShape& shape,
              const LiteCacheLayer& heads, const SelectQuery& query, void* scratch) override {
    const auto select =
        score_ == ops::HashScore::kSum ? ops::cuda::HashSelect : ops::cuda::HashSoftmaxSelect;
    select(stream, step, shape, heads, format_, weights_.Of(layer), query, scratch);
  }

 private:
  ops::HashFormat format_;
  ops::HashScore score_;
  DeviceMatrices weights_;
};

class CudaKeys final : public CudaRetriever {
 public:
  CudaKeys(Device& device, const Layout& layout, const Retriever& retriever)
      : format_(KeysFormatOf(layout, retriever.name())), rotation_(device, layout, retriever) {}
  void Encode(Stream& stream, int64_t layer, const StepView& step, const LiteCacheShape& shape,
              const LiteCacheLayer& heads, const MatrixView* k) override {
    ops::cuda::KeysEncode(stream, step, shape, heads, format_, rotation_.Of(layer), k);
  }
  void Select(Stream& stream, int64_t layer, const StepView& step, const LiteCacheShape& shape,
              const LiteCacheLayer& heads, const SelectQuery& query, void* scratch) override {
    ops::cuda::KeysSelect(stream, step, shape, heads, format_, rotation_.Of(layer), query, scratch);
  }

 private:
  ops::KeysFormat format_;
  DeviceMatrices rotation_;
};

class CudaQuest final : public CudaRetriever {
 public:
  explicit CudaQuest(const Layout& layout) : format_{.head_dim = layout.head_dim} {}
  void Encode(Stream& stream, int64_t, const StepView& step, const LiteCacheShape& shape,
              const LiteCacheLayer& heads, const MatrixView* k) override {
    ops::cuda::BoundsEncode(stream, step, shape, heads, format_, k);
  }
  void Select(Stream& stream, int64_t, const StepView& step, const LiteCacheShape& shape,
              const LiteCacheLayer& heads, const SelectQuery& query, void* scratch) override {
    ops::cuda::BoundsSelect(stream, step, shape, heads, format_, query, scratch);
  }

 private:
  ops::BoundsFormat format_;
};

class CudaLoki final : public CudaRetriever {
 public:
  CudaLoki(Device& device, const Layout& layout, const KvOptions& options,
           const Retriever& retriever)
      : format_(LokiFormat(layout, options)), bases_(device, layout, retriever) {}
  void Encode(Stream& stream, int64_t layer, const StepView& step, const LiteCacheShape& shape,
              const LiteCacheLayer& heads, const MatrixView* k) override {
    ops::cuda::ProjectionEncode(stream, step, shape, heads, format_, bases_.Of(layer), k);
  }
  void Select(Stream& stream, int64_t layer, const StepView& step, const LiteCacheShape& shape,
              const LiteCacheLayer& heads, const SelectQuery& query, void* scratch) override {
    ops::cuda::ProjectionSelect(stream, step, shape, heads, format_, bases_.Of(layer), query,
                                scratch);
  }

 private:
  ops::ProjectionFormat format_;
  DeviceMatrices bases_;
};

}  // namespace

std::unique_ptr<CudaRetriever> CreateCudaRetriever(Device& device, const Layout& layout,
                                                   const KvOptions& options,
                                                   const Retriever& retriever) {
  const std::string_view name = retriever.name();
  if (name == "exact") return std::make_unique<CudaExact>();
  if (name == "hata") return std::make_unique<CudaHata>(device, layout, options, retriever);
  if (name.starts_with("keys")) return std::make_unique<CudaKeys>(device, layout, retriever);
  if (name == "quest") return std::make_unique<CudaQuest>(layout);
  LC_CHECK(name == "loki", "retriever {}", name);
  return std::make_unique<CudaLoki>(device, layout, options, retriever);
}

}  // namespace litecache::kv
