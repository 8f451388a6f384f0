#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "device/cpu/cpu_device.h"
#include "model/decoder.h"
#include "model/families.h"
#include "model/weights.h"

namespace litecache::model {
namespace {

// dtype the weights have on the device.
DType DeviceDType(const Device& device, DType dtype) {
  return device.type() == DeviceType::kCuda && dtype == DType::kF16 ? DType::kF32 : dtype;
}

// Before minutes of work, not after.
void RequireMemory(const Device& device, const ModelConfig& config, DType dtype, const char* what) {
  const uint64_t bytes = static_cast<uint64_t>(config.parameters()) * SizeOf(dtype);
  const uint64_t free = device.Info().free_memory;
  if (bytes > free) {
    throw CapacityError("{} of {} parameters take {}, {} of memory are available", what,
                        config.parameters(), FormatBytes(bytes), FormatBytes(free));
  }
}

}  // namespace

std::unique_ptr<Decoder> LoadDecoder(Device& device, const std::filesystem::path& directory,
                                     const LoadOptions& options) {
  const ModelConfig config = ModelConfig::FromFile(directory / "config.json");
  const bool gpu = device.type() == DeviceType::kCuda;
  if (options.compute_f32 && config.weight_dtype != DType::kF32) {
    RequireMemory(device, config, DType::kF32, "weights widened to f32");
  } else if (gpu) {
    RequireMemory(device, config, DeviceDType(device, config.weight_dtype), "weights");
  }
  std::unique_ptr<CpuDevice> host;  // until the weights are uploaded
  if (gpu) host = std::make_unique<CpuDevice>();
  auto store = OpenCheckpointWeights(gpu ? *host : device, directory, options);
  if (gpu) {
    const DType dtype = options.compute_f32 ? DType::kF32 : config.weight_dtype;
    const auto total =
        config.parameters() * static_cast<int64_t>(SizeOf(DeviceDType(device, dtype)));
    store = UploadWeights(device, std::move(store), total, options.progress);
  }
  WeightStore& weights = *store;  // owned by the decoder from here on
  auto decoder = SpecOf(config.family).build(device, config, std::move(store));
  weights.Finish(options.progress);
  return decoder;
}

std::unique_ptr<Decoder> RandomDecoder(Device& device, const ModelConfig& config, uint64_t seed,
                                       const LoadOptions& options) {
  const DType dtype = options.compute_f32 ? DType::kF32 : config.weight_dtype;
  RequireMemory(device, config, dtype, "random weights");
  const auto total = config.parameters() * static_cast<int64_t>(SizeOf(dtype));
  const auto progress = [&](uint64_t done) {
    if (options.progress) options.progress(std::min(static_cast<int64_t>(done), total), total);
  };
  if (device.type() == DeviceType::kCuda) {
    CpuDevice host;
    auto store = UploadWeights(device, MakeRandomWeights(host, dtype, seed, progress), total, {});
    WeightStore& weights = *store;
    auto decoder = SpecOf(config.family).build(device, config, std::move(store));
    weights.Finish({});
    return decoder;
  }
  auto weights = MakeRandomWeights(device, dtype, seed, progress);
  return SpecOf(config.family).build(device, config, std::move(weights));
}

}  // namespace litecache::model
