// DeviceSampler on an NVIDIA GPU.
#pragma once

#include <memory>

#include "engine/device_sampler.h"
#include "ops/sample/sample_cuda.h"

namespace litecache::engine {

class GpuSampler final : public DeviceSampler {
 public:
  // Bytes of device memory that the sampler takes.
  static uint64_t Bytes(Stream& stream, int64_t rows, int64_t vocab);
  GpuSampler(Device& device, Stream& stream, const Mirror& logits, int64_t rows, int64_t vocab);

  void Clear() override;
  int64_t Add(const Sampler& sampler, int64_t logit_row, bool logprob,
              std::span<const uint32_t> allowed) override;
  void Issue(Stream& stream) override;
  DeviceToken token(int64_t index) const override;
  void Receive(Stream& stream, int64_t logit_row, int64_t rows) override;

 private:
  ops::cuda::SampleRow* rows() const { return input_->host<ops::cuda::SampleRow>(); }
  // The changes follow the rows in `input`, an address on the host or the device.
  ops::cuda::LogitChange* changes(std::byte* input) const;

  const Mirror& logits_;
  int64_t vocab_, max_rows_, max_changes_;
  std::unique_ptr<Mirror> input_;   // SampleRow [max_rows], LogitChange [max_changes]
  std::unique_ptr<Mirror> masks_;   // uint32 [max_rows][mask_words]
  std::unique_ptr<Mirror> tokens_;  // SampledToken [max_rows]
  Buffer scratch_;
  int64_t count_ = 0, changes_ = 0, mask_words_ = 0;  // of this step
};

}  // namespace litecache::engine
