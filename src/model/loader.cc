#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/units.h"
#include "device/cpu/cpu_device.h"
#include "device/cuda/cuda_device.h"
#include "model/decoder.h"
#include "model/decoder_base.h"
#include "model/expert_store.h"
#include "model/families.h"
#include "model/shard.h"
#include "model/weight_placement.h"
#include "model/weights.h"
#include "ops/common/available_cuda.h"
#include "parallel/communicator.h"

namespace litecache::model {
namespace {

WeightShares SharesOf(const LoadOptions& options) {
  return {options.weights_on_device, options.experts_on_device};
}
bool IsWhole(const LoadOptions& options) {
  return options.weights_on_device == 1 && options.experts_on_device == 1;
}

// Fails before minutes of loading rather than after. Returns what the weights take on `device`.
uint64_t RequireMemory(const Device& device, const ModelConfig& config, const WeightTypes& types,
                       const std::string& what, const WeightShares& shares) {
  const bool gpu = device.type() == DeviceType::kCuda;
  const uint64_t bytes = EstimateWeights(config, types, shares, gpu).device;
  const uint64_t free = device.Info().free_memory;
  if (bytes > free) {
    throw CapacityError("{} of {} parameters take {}, but only {} of memory are available", what,
                        config.parameters(), FormatBytes(bytes), FormatBytes(free));
  }
  return bytes;
}

// Null if all weights stay on the device.
std::unique_ptr<WeightStream> MakeStream(Device& device, const ModelConfig& config,
                                         const WeightTypes& types, const LoadOptions& options) {
  const double share = options.weights_on_device;
  if (WeightPlacement::Of(config.layers, share).offloaded == 0) return nullptr;
  if constexpr (ops::cuda::kAvailable) {
    if (device.type() == DeviceType::kCuda) {
      return CreateCudaWeightStream(device, WeightPlacement::Of(config, share),
                                    EstimatePlaces(config, types, SharesOf(options)));
    }
  }
  throw InvalidArgument(
      "weights_on_device = {}: on the CPU all weights are in the host's memory; leave "
      "it at 100% or use a GPU",
      share);
}

// Null if all experts stay on the device.
std::unique_ptr<ExpertStore> MakeExpertStore(Device& device, const ModelConfig& config,
                                             const LoadOptions& options) {
  CheckExperts(config, options.experts_on_device);
  if (options.experts_on_device == 1) return nullptr;
  if constexpr (ops::cuda::kAvailable) {
    if (device.type() == DeviceType::kCuda) {
      return CreateCudaExpertStore(device, options.experts_on_device);
    }
  }
  throw InvalidArgument(
      "experts_on_device = {}: on the CPU all weights are in the host's memory; leave it at 100% "
      "or use a GPU",
      options.experts_on_device);
}

ModelConfig PartOfRank(const ModelConfig& whole, const WeightTypes& types,
                       const LoadOptions& options) {
  if (options.ranks == nullptr) return whole;
  return ShardOf(whole, types, options.ranks->rank(), options.ranks->ranks());
}
std::unique_ptr<WeightStore> PartOfRank(Device& host, const ModelConfig& part,
                                        std::unique_ptr<WeightStore> whole, bool passing) {
  if (part.shard.whole == nullptr) return whole;
  return ShardWeights(host, part, std::move(whole), passing);
}

std::unique_ptr<Decoder> Build(Device& device, const ModelConfig& config,
                               std::unique_ptr<WeightStore> store, const LoadOptions& options) {
  auto decoder = SpecOf(config.family).build(device, config, std::move(store));
  if (options.ranks != nullptr) static_cast<DecoderBase&>(*decoder).Join(*options.ranks);
  return decoder;
}

}  // namespace

std::unique_ptr<Decoder> LoadDecoder(Device& device, const std::filesystem::path& model,
                                     const LoadOptions& options) {
  ModelConfig whole = ModelConfig::FromModel(model);
  if (options.max_context > 0) whole.LimitContext(options.max_context);
  const bool gpu = device.type() == DeviceType::kCuda;
  if (gpu) CheckRunsOnGpu(whole);
  const auto checkpoint = std::make_shared<const io::Checkpoint>(model, whole.experts.stacked);
  const WeightTypes types(whole, options.dtype, options.quantization, checkpoint);
  ModelConfig config = PartOfRank(whole, types, options);
  int64_t total = 0;
  if (gpu) {
    const uint64_t kept = RequireMemory(device, config, types, "weights", SharesOf(options));
    total = static_cast<int64_t>(IsWhole(options) ? kept
                                                  : EstimateWeights(config, types, {}, gpu).device);
  } else if (options.quantization.format != nullptr ||
             (config.quantization && options.dtype != DType::kF32)) {
    RequireMemory(device, config, types, "quantized weights", {});
  } else if (ConvertsWeights(config, options.dtype)) {
    RequireMemory(device, config, types,
                  "weights converted to " + std::string(Name(types.Of("", 1, 1).dtype)), {});
  }
  auto stream = MakeStream(device, config, types, options);
  auto experts = MakeExpertStore(device, config, options);
  std::unique_ptr<CpuDevice> host;  // until the weights are uploaded
  if (gpu) host = std::make_unique<CpuDevice>();
  auto store = OpenCheckpointWeights(gpu ? *host : device, checkpoint, types, gpu,
                                     gpu ? decltype(options.progress)() : options.progress);
  store = PartOfRank(gpu ? *host : device, config, std::move(store), gpu);
  if (gpu) {
    store = UploadWeights(device, host->pool(), std::move(store), std::move(stream),
                          std::move(experts), total, options.progress);
  }
  WeightStore& weights = *store;  // owned by the decoder from here on
  config.quantized = types.quantizes();
  auto decoder = Build(device, config, std::move(store), options);
  weights.Finish(options.progress);
  return decoder;
}

std::unique_ptr<Decoder> RandomDecoder(Device& device, const ModelConfig& shape, uint64_t seed,
                                       const LoadOptions& options) {
  if (device.type() == DeviceType::kCuda) CheckRunsOnGpu(shape);
  const WeightTypes types(shape, options.dtype, options.quantization, nullptr);
  ModelConfig config = PartOfRank(shape, types, options);
  config.quantized = types.quantizes();
  RequireMemory(device, config, types, "random weights", SharesOf(options));
  auto stream = MakeStream(device, config, types, options);
  auto experts = MakeExpertStore(device, config, options);
  const auto total = static_cast<int64_t>(EstimateWeights(config, types, {}, /*gpu=*/false).device);
  const auto progress = [&](uint64_t done) {
    if (options.progress) options.progress(std::min(static_cast<int64_t>(done), total), total);
  };
  if constexpr (ops::cuda::kAvailable) {
    if (device.type() == DeviceType::kCuda) {
      CpuDevice host;
      // The driver would copy unpinned memory once more, on one core.
      PinnedHost pinned(static_cast<CudaDevice&>(device));
      auto store = PartOfRank(host, config, MakeRandomWeights(host, types, seed, progress, &pinned),
                              /*passing=*/true);
      store = UploadWeights(device, host.pool(), std::move(store), std::move(stream),
                            std::move(experts), total, {});
      WeightStore& weights = *store;
      auto decoder = Build(device, config, std::move(store), options);
      weights.Finish({});
      return decoder;
    }
  }
  auto weights = PartOfRank(device, config, MakeRandomWeights(device, types, seed, progress),
                            /*passing=*/false);
  return Build(device, config, std::move(weights), options);
}

}  // namespace litecache::model
