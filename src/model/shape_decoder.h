// A model's shape without weights, for planning memory.
#pragma once

#include <memory>

#include "model/decoder.h"

namespace litecache::model {

// Knows the bytes of weights and activations; Forward() must not be called. Allocates no weights.
// options.progress is not called. device: any; bytes do not depend on it.
std::unique_ptr<Decoder> MakeShapeDecoder(Device& device, const ModelConfig& config,
                                          const LoadOptions& options);

}  // namespace litecache::model
