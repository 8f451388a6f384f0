#include "litecache/kv_cache.h"

#include <initializer_list>
#include <string>
#include <utility>

#include "base/error.h"
#include "device/caller_stream.h"
#include "device/machine.h"
#include "kv/api/wide_arrays.h"
#include "kv/cache_plan.h"
#include "kv/heads/profile.h"
#include "kv/layout.h"

namespace litecache {
namespace {

kv::Layout LayoutOf(const KvShape& shape) {
  kv::Layout layout{.layers = shape.layers,
                    .q_heads = shape.q_heads,
                    .kv_heads = shape.kv_heads,
                    .head_dim = shape.head_dim,
                    .dtype = shape.f32_rows ? DType::kF32 : DType::kBF16,
                    .hidden = shape.hidden};
  kv::CheckLayout(layout);
  return layout;
}

std::shared_ptr<const kv::Profile> LoadProfile(const KvOptions& options, const kv::Layout& layout) {
  if (options.policy == "full" || options.profile == "auto" || options.profile == "none") {
    return nullptr;
  }
  auto profile = std::make_shared<const kv::Profile>(kv::Profile::Load(options.profile));
  // The model's files are unknown here, so only the shapes can be checked.
  profile->CheckModel(layout, profile->fingerprint, options.profile);
  return profile;
}

class FunctionProjection final : public kv::KeyValueProjection {
 public:
  const KvProjection* function = nullptr;
  void Project(Stream&, int64_t layer, const MatrixView& x, std::span<const int32_t> positions,
               const MatrixView& k, const MatrixView& v) override {
    // On the CPU a call covers one sequence, so the positions are consecutive.
    LC_CHECK(!positions.empty() &&
             positions.back() - positions.front() == static_cast<int32_t>(positions.size()) - 1);
    (*function)(layer, x.Row<float>(0), x.rows, positions.front(), k.Row<float>(0),
                v.Row<float>(0));
  }
};

DType DTypeOf(KvElement element) {
  switch (element) {
    case KvElement::kF32:
      return DType::kF32;
    case KvElement::kBF16:
      return DType::kBF16;
    case KvElement::kF16:
      return DType::kF16;
  }
  throw InvalidArgument("KV cache: element type {} is none of KvElement",
                        static_cast<int>(element));
}

// A call on a GPU: its work comes after what the caller has enqueued before, and before the rest.
class Turn {
 public:
  explicit Turn(CallerStream* caller) : caller_(caller) {
    if (caller_ != nullptr) caller_->Enter();
  }
  ~Turn() {
    if (caller_ != nullptr) caller_->Leave();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  CallerStream* caller_;
};

class KvCacheOnDevice final : public KvCache {
 public:
  KvCacheOnDevice(const KvShape& shape, const KvOptions& options, Machine machine, void* stream)
      : layout_(LayoutOf(shape)), machine_(std::move(machine)), wide_(machine_.compute()) {
    Device& device = machine_.compute();
    stream_ = device.CreateStream();
    if (machine_.gpu != nullptr) {
      if (options.policy == "kvpr") {
        throw Unsupported("policy kvpr: on a GPU only an engine has it; use full or litecache");
      }
      caller_ = OrderWithCaller(device, *stream_, stream);
    }
    const Turn turn(caller_.get());
    const auto plan =
        kv::MakeCachePlan(layout_, options, LoadProfile(options, layout_), device.type());
    const kv::TierBytes budget{.device = options.device_memory, .host = options.host_memory};
    const kv::TierBytes needed = plan->BytesFor(1 << 20);
    if ((needed.device > 0 && budget.device == 0) || (needed.host > 0 && budget.host == 0)) {
      throw InvalidArgument(
          "KV options: device_memory = {} and host_memory = {}: the cache's budgets have to be set",
          options.device_memory, options.host_memory);
    }
    cache_ = plan->Create(device, budget);
  }

  void UseStream(void* stream) override {
    if (caller_ != nullptr) caller_->Use(stream);
  }

  kv::TierBytes BytesFor(int64_t tokens) const override { return cache_->BytesFor(tokens); }
  int64_t CreateSequence() override {
    const Turn turn(caller_.get());
    return cache_->Create();
  }
  int64_t ForkSequence(int64_t parent) override {
    const Turn turn(caller_.get());
    return cache_->Fork(parent);
  }
  void ReleaseSequence(int64_t sequence) override {
    const Turn turn(caller_.get());
    cache_->Release(sequence);
  }
  int64_t Length(int64_t sequence) const override { return cache_->Length(sequence); }

  void BeginStep(std::span<const KvPart> parts) override {
    const Turn turn(caller_.get());
    begun_ = false;
    step_ = {};
    for (const KvPart& part : parts) {
      step_.sequences.push_back({.id = part.sequence,
                                 .first_row = step_.rows,
                                 .rows = part.rows,
                                 .past = cache_->Length(part.sequence),
                                 .decode = part.decode});
      step_.rows += part.rows;
      step_.decode_rows += part.decode ? part.rows : 0;
    }
    cache_->BeginStep(step_);
    begun_ = true;
    next_layer_ = 0;
  }

  int64_t PredictionSource(int64_t layer) const override { return cache_->PredictionSource(layer); }

  void Prefetch(int64_t layer, const float* q, float scale) override {
    CheckLayer("Prefetch", layer);
    if (layer == 0) throw InvalidArgument("KV cache: nothing can be prefetched for layer 0");
    const Turn turn(caller_.get());
    cache_->Prefetch(*stream_, layer, step_, View(q, step_.decode_rows, layout_.q_heads), scale);
  }

  bool WantsInputs() const override { return cache_->WantsInputs(); }

  void KeepInputs(int64_t layer, const float* x, const KvProjection& projection) override {
    CheckLayer("KeepInputs", layer);
    projection_.function = &projection;
    cache_->KeepInputs(*stream_, layer, step_,
                       MatrixView::Of(const_cast<float*>(x), step_.rows, layout_.hidden),
                       &projection_);
  }

  void Attend(int64_t layer, KvElement element, const void* q, const void* k, const void* v,
              float scale, void* out) override {
    CheckLayer("Attend", layer);
    // Rows of a layer left out would be attended by later steps, whatever is in them.
    if (layer != next_layer_) {
      throw InvalidArgument(
          "KV cache: layer {} is attended where layer {} of {} is next: a step attends every layer "
          "once, in order",
          layer, next_layer_, layout_.layers);
    }
    const DType dtype = DTypeOf(element);
    if (caller_ != nullptr) CheckAligned({q, k, v, out});
    const Turn turn(caller_.get());
    const int64_t rows = step_.rows;
    const int64_t q_cols = layout_.q_heads * layout_.head_dim;
    const int64_t kv_cols = layout_.kv_heads * layout_.head_dim;
    wide_.Begin(*stream_, dtype, 2 * rows * (q_cols + kv_cols));
    const MatrixView queries = wide_.Read(*stream_, q, rows, q_cols);
    const MatrixView keys = wide_.Read(*stream_, k, rows, kv_cols);
    const MatrixView values = wide_.Read(*stream_, v, rows, kv_cols);
    const MatrixView result = wide_.Place(out, rows, q_cols);
    cache_->Attend(*stream_, layer, step_, queries, keys, values, scale, result);
    wide_.Write(*stream_, result, out);
    ++next_layer_;
  }

  void EndStep() override {
    CheckLayer("EndStep", 0);
    if (step_.rows > 0 && next_layer_ != layout_.layers) {
      throw InvalidArgument("KV cache: the step ends after {} of {} layers: attend them all",
                            next_layer_, layout_.layers);
    }
    const Turn turn(caller_.get());
    stream_->Synchronize();
    cache_->EndStep(step_);
    begun_ = false;
  }

  kv::Stats GetStats() const override { return cache_->GetStats(); }
  std::span<const kv::HeadCounters> Heads() const override { return cache_->Heads(); }

 private:
  // Kernels read several values at a time.
  static void CheckAligned(std::initializer_list<const void*> arrays) {
    for (const void* array : arrays) {
      if (reinterpret_cast<uintptr_t>(array) % 16 == 0) continue;
      throw InvalidArgument("KV cache: an array at {} does not begin at a multiple of 16 bytes",
                            array);
    }
  }
  void CheckLayer(const char* call, int64_t layer) const {
    if (!begun_) throw InvalidArgument("KV cache: {} without BeginStep", call);
    if (layer < 0 || layer >= layout_.layers) {
      throw InvalidArgument("KV cache: layer {} of {}", layer, layout_.layers);
    }
  }
  MatrixView View(const float* values, int64_t rows, int64_t heads) const {
    return MatrixView::Of(const_cast<float*>(values), rows, heads * layout_.head_dim);
  }

  kv::Layout layout_;
  Machine machine_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<CallerStream> caller_;  // on a GPU only
  std::unique_ptr<kv::Cache> cache_;
  kv::Step step_;
  WideArrays wide_;
  FunctionProjection projection_;
  bool begun_ = false;
  int64_t next_layer_ = 0;  // of the step
};

}  // namespace

std::unique_ptr<KvCache> KvCache::Create(const KvShape& shape, const KvOptions& options,
                                         int threads) {
  return std::make_unique<KvCacheOnDevice>(shape, options, OpenMachine("cpu", threads), nullptr);
}

std::unique_ptr<KvCache> KvCache::CreateOnGpu(const KvShape& shape, const KvOptions& options,
                                              const KvGpu& gpu) {
  const KeepsCurrentGpu current;
  return std::make_unique<KvCacheOnDevice>(
      shape, options, OpenMachine("cuda:" + std::to_string(gpu.index), 0), gpu.stream);
}

}  // namespace litecache
