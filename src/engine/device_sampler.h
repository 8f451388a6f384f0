// Chooses tokens on the device, so that the logits need not be copied to the host.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/matrix_view.h"
#include "device/device.h"
#include "engine/sampler.h"

namespace litecache::engine {

// A device's choice for a row.
struct DeviceToken {
  enum class Status {
    kChosen,
    kNotFinite,  // a logit is NaN or infinite
    kUndecided,  // too many tokens remain: the host has to choose
  };
  Status status = Status::kChosen;
  int32_t token = 0;
  float logprob = 0;  // if it was requested
};

// For a step's rows of logits, returns the next token of some rows and the complete row of others.
class DeviceSampler {
 public:
  virtual ~DeviceSampler() = default;

  virtual void Clear() = 0;
  // Requests the sampler's next token from row logit_row; the caller later passes it to
  // Sampler::Accept. Returns the token's index in this step, or -1, without effect, if the device
  // cannot choose it. allowed: the tokens to choose from, as bits of Sampler::SampleAllowed; empty:
  // all.
  virtual int64_t Add(const Sampler& sampler, int64_t logit_row, bool logprob,
                      std::span<const uint32_t> allowed) = 0;
  // Enqueues the choice of all added tokens; token() returns them after Synchronize().
  virtual void Issue(Stream& stream) = 0;
  virtual DeviceToken token(int64_t index) const = 0;
  // Enqueues the copy of `rows` rows, from logit_row on, to the host.
  virtual void Receive(Stream& stream, int64_t logit_row, int64_t rows) = 0;
};

// The most tokens of a step: one of each sequence, and one behind each draft.
inline int64_t SampledRows(int64_t max_batch, int64_t score_rows, int64_t draft_tokens) {
  return draft_tokens > 0 ? max_batch + score_rows : max_batch;
}

// Bytes of device memory that a sampler takes; 0 if the device has no sampler.
uint64_t DeviceSamplerBytes(Device& device, Stream& stream, int64_t rows, int64_t vocab);
// logits: [.., vocab] f32 in a mirror, which must outlive the sampler; at most `rows` tokens per
// step. Null if the host can read the device's memory directly.
std::unique_ptr<DeviceSampler> CreateDeviceSampler(Device& device, Stream& stream,
                                                   const Mirror& logits, int64_t rows,
                                                   int64_t vocab);

}  // namespace litecache::engine
