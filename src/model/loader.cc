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

}  // namespace

std::unique_ptr<Decoder> LoadDecoder(Device& device, const std::filesystem::path& directory,
                                     const LoadOptions& options) {
  RequireCpu(device);
  const ModelConfig config = ModelConfig::FromFile(directory / "config.json");
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
  const uint64_t bytes = static_cast<uint64_t>(config.parameters()) * SizeOf(dtype);
  const uint64_t free = device.Info().free_memory;
  if (bytes > free) {
    throw CapacityError("random weights of {} parameters take {}, {} of memory are available",
                        config.parameters(), FormatBytes(bytes), FormatBytes(free));
  }
  auto decoder =
      SpecOf(config.family).build(device, config, MakeRandomWeights(device, dtype, seed));
  if (options.progress) {
    options.progress(static_cast<int64_t>(bytes), static_cast<int64_t>(bytes));
  }
  return decoder;
}

}  // namespace litecache::model
