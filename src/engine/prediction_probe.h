// Measures at start which layers' queries can be predicted, for KvOptions::prefetch = auto.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "litecache/kv_options.h"
#include "model/decoder.h"

namespace litecache::engine {

// [distance - 1][layers], distances 1 to 2: the mean cosine, over query heads and decode steps, of
// a layer's queries and their predictions that many layers earlier; 0 where there is no such layer.
// The model decodes its own text for `steps` steps a distance.
std::vector<std::vector<float>> MeasurePredictions(Device& device, Stream& stream,
                                                   model::Decoder& decoder, int64_t steps = 16);

// The options with prefetch = auto replaced by what was measured, if that is what auto stands for:
// policy litecache on a GPU. Takes as long as 40 decode steps.
KvOptions WithMeasuredSources(const KvOptions& options, Device& device, Stream& stream,
                              model::Decoder& decoder);

}  // namespace litecache::engine
