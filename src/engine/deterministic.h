// EngineOptions::deterministic: how many rows may be computed together.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "litecache/kv_options.h"
#include "model/decoder.h"

namespace litecache::engine {

// The most decode rows of a step such that a row's result has the same bits for any number of them
// (on a GPU's stream after MakeBatchInvariant()). Throws InvalidArgument for other policies than
// full and litecache, and Unsupported for a model that does not compute in bf16 on a GPU.
int64_t DeterministicRows(const model::Decoder& decoder, DeviceType device, const KvOptions& kv);

}  // namespace litecache::engine
