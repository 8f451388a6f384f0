#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "model/decoder.h"
#include "model/families.h"
#include "model/weights.h"

namespace litecache::model {
namespace {

void RequireCpu(const Device& device) {
  if (device.type() != DeviceType::kCpu) {
    throw Unsupported("the device {}: models run on the CPU", device.Info().name);
  }
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
  RequireCpu(device);
  const ModelConfig config = ModelConfig::FromFile(directory / "config.json");
  if (options.compute_f32 && config.weight_dtype != DType::kF32) {
    RequireMemory(device, config, DType::kF32, "weights widened to f32");
  }
  auto store = OpenCheckpointWeights(device, directory, options);
  WeightStore& weights = *store;  // owned by the decoder from here on
  auto decoder = SpecOf(config.family).build(device, config, std::move(store));
  weights.Finish(options.progress);
  return decoder;
}

std::unique_ptr<Decoder> RandomDecoder(Device& device, const ModelConfig& config, uint64_t seed,
                                       const LoadOptions& options) {
  RequireCpu(device);
  const DType dtype = options.compute_f32 ? DType::kF32 : config.weight_dtype;
  RequireMemory(device, config, dtype, "random weights");
  const auto total = config.parameters() * static_cast<int64_t>(SizeOf(dtype));
  auto weights = MakeRandomWeights(device, dtype, seed, [&](uint64_t done) {
    if (options.progress) options.progress(std::min(static_cast<int64_t>(done), total), total);
  });
  return SpecOf(config.family).build(device, config, std::move(weights));
}

}  // namespace litecache::model
