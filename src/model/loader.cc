#include <algorithm>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/units.h"
#include "device/cpu/cpu_device.h"
#include "device/cuda/cuda_device.h"
#include "model/decoder.h"
#include "model/families.h"
#include "model/weight_placement.h"
#include "model/weights.h"
#include "ops/common/available_cuda.h"

namespace litecache::model {
namespace {

// The dtype that the weights have on the device.
DType DeviceDType(const Device& device, DType dtype) {
  return device.type() == DeviceType::kCuda && dtype == DType::kF16 ? DType::kF32 : dtype;
}

// Fails before minutes of loading rather than after. on_device: share of the layers that stay on
// the device.
void RequireMemory(const Device& device, const ModelConfig& config, DType dtype,
                   const std::string& what, double on_device) {
  const uint64_t bytes = EstimateWeights(config, dtype, on_device).device;
  const uint64_t free = device.Info().free_memory;
  if (bytes > free) {
    throw CapacityError("{} of {} parameters take {}, but only {} of memory are available", what,
                        config.parameters(), FormatBytes(bytes), FormatBytes(free));
  }
}

// Null if all weights stay on the device.
std::unique_ptr<WeightStream> MakeStream(Device& device, const ModelConfig& config,
                                         const LoadOptions& options) {
  const auto placement = WeightPlacement::Of(config.layers, options.weights_on_device);
  if (placement.offloaded == 0) return nullptr;
  if constexpr (ops::cuda::kAvailable) {
    if (device.type() == DeviceType::kCuda) return CreateCudaWeightStream(device, placement);
  }
  throw InvalidArgument(
      "weights_on_device = {}: on the CPU all weights are in the host's memory; leave "
      "it at 100% or use a GPU",
      options.weights_on_device);
}

}  // namespace

std::unique_ptr<Decoder> LoadDecoder(Device& device, const std::filesystem::path& model,
                                     const LoadOptions& options) {
  const ModelConfig config = ModelConfig::FromModel(model);
  const bool gpu = device.type() == DeviceType::kCuda;
  std::optional<DType> converted;
  if (config.converts_weights) converted = config.weight_dtype;
  if (options.compute_f32) converted = DType::kF32;
  const DType dtype = converted.value_or(config.weight_dtype);
  if (gpu) {
    RequireMemory(device, config, DeviceDType(device, dtype), "weights", options.weights_on_device);
  } else if (config.converts_weights || dtype != config.weight_dtype) {
    RequireMemory(device, config, dtype, "weights converted to " + std::string(Name(dtype)), 1);
  }
  auto stream = MakeStream(device, config, options);
  std::unique_ptr<CpuDevice> host;  // until the weights are uploaded
  if (gpu) host = std::make_unique<CpuDevice>();
  auto store = OpenCheckpointWeights(gpu ? *host : device, model, converted, gpu,
                                     gpu ? decltype(options.progress)() : options.progress);
  if (gpu) {
    const auto total =
        config.parameters() * static_cast<int64_t>(SizeOf(DeviceDType(device, dtype)));
    store = UploadWeights(device, std::move(store), std::move(stream), total, options.progress);
  }
  WeightStore& weights = *store;  // owned by the decoder from here on
  auto decoder = SpecOf(config.family).build(device, config, std::move(store));
  weights.Finish(options.progress);
  return decoder;
}

std::unique_ptr<Decoder> RandomDecoder(Device& device, const ModelConfig& config, uint64_t seed,
                                       const LoadOptions& options) {
  const DType dtype = options.compute_f32 ? DType::kF32 : config.weight_dtype;
  RequireMemory(device, config, dtype, "random weights", options.weights_on_device);
  auto stream = MakeStream(device, config, options);
  const auto total = config.parameters() * static_cast<int64_t>(SizeOf(dtype));
  const auto progress = [&](uint64_t done) {
    if (options.progress) options.progress(std::min(static_cast<int64_t>(done), total), total);
  };
  if constexpr (ops::cuda::kAvailable) {
    if (device.type() == DeviceType::kCuda) {
      CpuDevice host;
      // The driver would copy unpinned memory once more, on one core.
      PinnedHost pinned(static_cast<CudaDevice&>(device));
      auto store = UploadWeights(device, MakeRandomWeights(host, dtype, seed, progress, &pinned),
                                 std::move(stream), total, {});
      WeightStore& weights = *store;
      auto decoder = SpecOf(config.family).build(device, config, std::move(store));
      weights.Finish({});
      return decoder;
    }
  }
  auto weights = MakeRandomWeights(device, dtype, seed, progress);
  return SpecOf(config.family).build(device, config, std::move(weights));
}

}  // namespace litecache::model
