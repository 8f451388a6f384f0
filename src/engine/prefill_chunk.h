// The default number of prompt tokens that a step processes.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "model/decoder.h"

namespace litecache::engine {

// On a CPU it is 512: more is no faster. On a GPU it is the largest power of two from 512 to 8192
// whose activations take at most a sixteenth of `memory`, the bytes left beside the weights:
// products of more rows are faster, and under policy litecache every chunk reads the rows of all
// earlier chunks from the host.
int64_t DefaultPrefillChunk(const model::Decoder& decoder, DeviceType device, uint64_t memory);

// EngineOptions::prefill_chunk_beside_decode for a core whose steps process `chunk` prompt tokens,
// if the user asked for `wanted`.
int64_t PrefillChunkBesideDecode(int64_t wanted, DeviceType device, int64_t chunk);

}  // namespace litecache::engine
