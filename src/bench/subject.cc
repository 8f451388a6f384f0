#include "bench/subject.h"

#include <algorithm>

#include "base/error.h"
#include "base/progress.h"
#include "base/units.h"
#include "engine/memory_plan.h"
#include "engine/prefill_chunk.h"
#include "io/hub.h"
#include "kv/tiers.h"
#include "model/shard.h"
#include "model/weight_placement.h"
#include "parallel/communicator.h"

namespace litecache::bench {

Subject::Subject(const Machine& machine, const SubjectOptions& options)
    : machine_(machine), prefill_chunk_(options.prefill_chunk), caps_(options.caps) {
  const auto most = [](const Device& d) {
    return static_cast<uint64_t>(0.9 * static_cast<double>(d.Info().free_memory));
  };
  budget_ = options.memory > 0 ? options.memory : most(*machine.cpu);
  if (machine.gpu != nullptr) {
    caps_.host = caps_.host == 0 ? budget_ : engine::HostCap(caps_.host, budget_, options.memory);
    if (caps_.device == 0) caps_.device = most(*machine.gpu);
    budget_ = caps_.total();
  }
  if (caps_.device == 0) caps_.device = budget_;
  if (caps_.host == 0) caps_.host = budget_;
  Load(options);
  if (prefill_chunk_ == 0) {
    const uint64_t weights = decoder_->weight_bytes();
    prefill_chunk_ = engine::DefaultPrefillChunk(
        *decoder_, machine.compute().type(), caps_.device > weights ? caps_.device - weights : 0);
  }
}

void Subject::Load(const SubjectOptions& options) {
  Device& device = machine_.compute();
  model::LoadOptions load = options.weights;
  std::unique_ptr<ProgressBar> bar;
  load.progress = [&bar](int64_t done, int64_t total) {
    if (bar == nullptr) bar = std::make_unique<ProgressBar>("Loading", total, "B");
    bar->Update(done);
  };
  if (options.shape.empty()) {
    name_ = options.model;
    directory_ = io::ResolveModel(options.model);
    decoder_ = model::LoadDecoder(device, directory_, load);
    config_ = decoder_->config();
    layout_ = config_.kv_layout(decoder_->kv_dtype());
    caps_.host -= std::min(caps_.host, decoder_->host_weight_bytes());
    return;
  }
  name_ = options.shape;
  auto config = model::ModelConfig::FromShapeName(options.shape);
  config.max_context = std::max(config.max_context, options.longest);
  if (options.layers > config.layers) {
    throw InvalidArgument("--layers {}: {} has {}", options.layers, name_, config.layers);
  }
  if (options.layers > 0) {
    name_ = fmt::format("{} ({} of {} layers)", name_, options.layers, config.layers);
    config.KeepLayers(options.layers);
  }
  const model::WeightTypes types(config, load.dtype, load.quantization, nullptr);
  config_ = load.ranks == nullptr
                ? config
                : model::ShardOf(config, types, load.ranks->rank(), load.ranks->ranks());
  const auto weights =
      model::EstimateWeights(config_, types, {load.weights_on_device, load.experts_on_device},
                             device.type() == DeviceType::kCuda);
  engine::CheckWeightsFit(name_, weights.device, caps_.device);
  if (weights.host > 0) engine::CheckWeightsFit(name_, weights.host, caps_.host);
  const bool bf16 = load.dtype.value_or(config.weight_dtype) == DType::kBF16 ||
                    (!load.dtype && load.quantization.format != nullptr);
  layout_ = config_.kv_layout(bf16 ? DType::kBF16 : DType::kF32);
  weights_ = weights.device;
  if (options.before_weights) options.before_weights(*this);
  decoder_ = model::RandomDecoder(device, config, options.seed, load);
  LC_CHECK(layout_.dtype == decoder_->kv_dtype());
  caps_.host -= std::min(caps_.host, decoder_->host_weight_bytes());
}

uint64_t Subject::FixedBytes(const kv::CachePlan& plan, int64_t batch, int64_t context) const {
  if (decoder_ == nullptr) return weights_;
  return decoder_->weight_bytes() + decoder_->WorkspaceBytes(prefill_chunk_, 1) +
         plan.ScratchBytes(batch, context, machine_.cpu->pool().size());
}

bool Subject::Fits(const kv::CachePlan& plan, int64_t batch, int64_t context) const {
  return Fits(FixedBytes(plan, batch, context),
              static_cast<uint64_t>(batch) * plan.BytesFor(context));
}

bool Subject::Fits(uint64_t fixed, const kv::TierBytes& kv) const {
  return fixed + kv.total() <= budget_ && fixed + kv.device <= caps_.device &&
         kv.host <= caps_.host;
}

void Subject::CheckFits(const std::string& policy, kv::CachePlan& plan, int64_t batch,
                        int64_t context, int64_t more) const {
  if (context + more > config_.max_context) {
    throw InvalidArgument("--context {}: {} tokens are needed, but the model has a context of {}",
                          context, context + more, config_.max_context);
  }
  const uint64_t fixed = FixedBytes(plan, batch, context + more);
  const auto kv_bytes = [&](int64_t length) {
    return static_cast<uint64_t>(batch) * plan.BytesFor(length + more);
  };
  const auto fits = [&](int64_t length) { return Fits(fixed, kv_bytes(length)); };
  while (!fits(context) && plan.DropResidentHead()) {
  }
  if (fits(context)) return;
  int64_t low = 0, high = context;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  throw CapacityError(
      "{}, batch {} at context {}: {} for weights and buffers and {} for KV are needed, but the "
      "memory budget is {} ({} on the device, {} for the host store): {}",
      policy, batch, context, FormatBytes(fixed), kv::FormatTiers(kv_bytes(context)),
      FormatBytes(budget_), FormatBytes(caps_.device), FormatBytes(caps_.host),
      low > 0 ? fmt::format("{} tokens of context fit; lower --context or --batch, or raise "
                            "--memory or --device-memory",
                            low)
              : std::string("lower --batch, or raise --memory or --device-memory"));
}

}  // namespace litecache::bench
