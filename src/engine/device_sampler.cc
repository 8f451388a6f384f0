#include "engine/device_sampler.h"

#ifdef LITECACHE_CUDA
#include "engine/gpu_sampler_cuda.h"
#endif

namespace litecache::engine {

uint64_t DeviceSamplerBytes([[maybe_unused]] Device& device, [[maybe_unused]] Stream& stream,
                            [[maybe_unused]] int64_t rows, [[maybe_unused]] int64_t vocab) {
#ifdef LITECACHE_CUDA
  if (device.type() == DeviceType::kCuda) return GpuSampler::Bytes(stream, rows, vocab);
#endif
  return 0;
}

std::unique_ptr<DeviceSampler> CreateDeviceSampler([[maybe_unused]] Device& device,
                                                   [[maybe_unused]] Stream& stream,
                                                   [[maybe_unused]] const Mirror& logits,
                                                   [[maybe_unused]] int64_t rows,
                                                   [[maybe_unused]] int64_t vocab) {
#ifdef LITECACHE_CUDA
  if (device.type() == DeviceType::kCuda) {
    return std::make_unique<GpuSampler>(device, stream, logits, rows, vocab);
  }
#endif
  return nullptr;
}

}  // namespace litecache::engine
