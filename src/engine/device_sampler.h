// Chooses tokens on the device, so that the logits need not come to the host.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/matrix_view.h"
#include "device/device.h"
#include "engine/sampler.h"

namespace litecache::engine {

// What a device has chosen for a row.
struct DeviceToken {
  enum class Status {
    kChosen,
    kNotFinite,  // a logit is NaN or infinite
    kUndecided,  // too many tokens are left to choose from: the host has to
  };
  Status status = Status::kChosen;
  int32_t token = 0;
  float logprob = 0;  // where it was asked for
};

// A step's rows of logits: of some the next token comes back, others come back whole.
class DeviceSampler {
 public:
  virtual ~DeviceSampler() = default;

  virtual void Clear() = 0;
  // The sampler's next token from row logit_row; it is told of it later (Sampler::Accept). Returns
  // which token of this step it will be, or -1, having done nothing, where the device cannot do it.
  // allowed: the tokens to choose from, as Sampler::SampleAllowed's bits; empty: all.
  virtual int64_t Add(const Sampler& sampler, int64_t logit_row, bool logprob,
                      std::span<const uint32_t> allowed) = 0;
  // Enqueues the choice of all tokens added; token() has them after Synchronize().
  virtual void Issue(Stream& stream) = 0;
  virtual DeviceToken token(int64_t index) const = 0;
  // Enqueues the copy of `rows` rows to the host.
  virtual void Receive(Stream& stream, int64_t logit_row, int64_t rows) = 0;
};

// The device's memory that one takes; 0 where there is none.
uint64_t DeviceSamplerBytes(Device& device, Stream& stream, int64_t rows, int64_t vocab);
// For logits [.., vocab] f32 in a mirror, and at most `rows` tokens a step. Null where the host
// reads the device's memory itself. logits must outlive it.
std::unique_ptr<DeviceSampler> CreateDeviceSampler(Device& device, Stream& stream,
                                                   const Mirror& logits, int64_t rows,
                                                   int64_t vocab);

}  // namespace litecache::engine
