// A model's shape without weights, for planning memory.
#pragma once

#include <memory>

#include "model/decoder.h"

namespace litecache::model {

// Knows the bytes of weights and activations; Forward() must not be called. Allocates no weights.
// options.progress is not called. gpu: the weights are as a GPU holds them, whatever `device` is.
std::unique_ptr<Decoder> MakeShapeDecoder(Device& device, const ModelConfig& config,
                                          const LoadOptions& options, bool gpu);

}  // namespace litecache::model
