// What becomes of a layer's queries, keys and values between their projections and attention: norms
// of heads, and RoPE.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "device/device.h"
#include "model/config.h"
#include "model/device_rope.h"
#include "model/transformer_activations.h"
#include "model/transformer_layer.h"
#include "ops/dense/rope.h"
#include "parallel/communicator.h"

namespace litecache::model {

// Rotations of keys beside a step, by the stream that computes them.
struct StreamRotations {
  const Stream* stream = nullptr;
  Buffer rotations;
};

class TransformerHeads {
 public:
  // config must outlive the object.
  TransformerHeads(Device& device, const ModelConfig& config);

  // The rotations of a step's positions, which the other functions find in `a`.
  void Prepare(Stream& stream, std::span<const int32_t> positions,
               const TransformerActivations& a) const;

  // A layer's projections with their norms.
  ops::ProjectedHeads Queries(const TransformerLayer& layer, const MatrixView& q) const {
    return {.x = q, .heads = config_.q_heads, .norm = layer.q_norm};
  }
  ops::ProjectedHeads Keys(const TransformerLayer& layer, const MatrixView& k) const {
    const int64_t dim = layer.q.weight.rows / config_.q_heads;
    return {.x = k, .heads = k.cols / dim, .norm = layer.k_norm};
  }

  // Norms and RoPE of queries of layer `index`.
  void RotateQueries(Stream& stream, int64_t index, const TransformerActivations& a,
                     const ops::ProjectedHeads& queries) const {
    Rotate(stream, index, QueryRotationsOf(index, a), {&queries, 1});
  }
  // The same of queries and, as the last part, the layer's keys. ranks: those that have the other
  // heads, or null.
  void RotateWithKeys(Stream& stream, int64_t index, const TransformerActivations& a,
                      parallel::Communicator* ranks,
                      std::initializer_list<ops::ProjectedHeads> parts) const;
  // The same of keys at any positions, beside a step: on up to two streams at once.
  void RotateKeys(Stream& stream, int64_t index, std::span<const int32_t> positions,
                  const ops::ProjectedHeads& keys);
  // Whether the keys of two layers get the same rotations.
  bool RotateAlike(int64_t one, int64_t other) const {
    return config_.rotates(one) == config_.rotates(other) && &RopeOf(one) == &RopeOf(other);
  }

  // The norm of values. Of a layer without a projection to them they first become its keys, to
  // which nothing has been done yet.
  void FinishValues(Stream& stream, int64_t index, const TransformerLayer& layer,
                    const MatrixView& k, const MatrixView& v) const;

 private:
  const DeviceRopeTable& RopeOf(int64_t index) const {
    return window_rope_ && config_.has_window(index) ? *window_rope_ : rope_;
  }
  const MatrixView& RotationsOf(int64_t index, const TransformerActivations& a) const {
    return window_rope_ && config_.has_window(index) ? a.window_rotations : a.rotations;
  }
  const MatrixView& QueryRotationsOf(int64_t index, const TransformerActivations& a) const {
    return a.query_rotations.rows > 0 ? a.query_rotations : RotationsOf(index, a);
  }
  float Epsilon() const { return static_cast<float>(config_.norm_eps); }
  void Rotate(Stream& stream, int64_t index, const MatrixView& rotations,
              std::span<const ops::ProjectedHeads> parts) const;
  // A norm over the heads of all ranks. x [T, n]: this rank's.
  void NormTogether(Stream& stream, const MatrixView& x, const float* norm,
                    parallel::Communicator& ranks, const TransformerActivations& a) const;
  float* KeyRotations(const Stream& stream, int64_t floats);

  Device& device_;
  const ModelConfig& config_;
  DeviceRopeTable rope_;
  std::optional<DeviceRopeTable> window_rope_;  // if layers with a window have their own
  // Of the two streams that called RotateKeys() last.
  std::pair<StreamRotations, StreamRotations> key_rotations_;
  const Buffer ones_;  // f32, weights of the values' norms
};

}  // namespace litecache::model
