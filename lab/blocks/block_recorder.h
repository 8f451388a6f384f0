// Records the blocks that sparse prefill keeps of a prompt.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "device/device.h"
#include "lab/blocks/block_patterns.h"
#include "lab/namespaces.h"
#include "model/decoder.h"

namespace litecache::lab {

// The prompt's tokens run through the model under policy `full` with sparse prefill, by chunks of
// the size that benches of GPUs have; its last query is none of a prompt's end. Tokens behind the
// last whole block of queries and rows are left out. Fills in all but model, fingerprint, text and
// the date. Throws InvalidArgument for fewer than BlockPatterns::kLeastTokens tokens, Unsupported
// for a model whose prompts cannot be sparse on this device.
BlockPatterns RecordBlocks(Device& device, Stream& stream, model::Decoder& decoder,
                           std::span<const int32_t> tokens, double mass,
                           const std::function<void(int64_t done)>& progress);

}  // namespace litecache::lab
