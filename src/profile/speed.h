// The machine's speeds, which determine the number of resident heads (CLO eq. 12).
#pragma once

#include <cstdint>

#include "device/device.h"
#include "kv/cache.h"
#include "model/decoder.h"

namespace litecache::profile {

// Median seconds from one layer's attention to the next one's in a decode step of batch 1 that
// attends `rows` rows: the time that a prefetch may take without delaying the step.
double MeasureLayerSeconds(Device& device, Stream& stream, model::Decoder& decoder, int64_t rows);

// Bytes per second from a host store's pages to cache slots, moved as in a refresh: `share` of a
// head's `context` rows, at random, head after head, over more heads than fit a processor's cache.
// Median of several passes.
double MeasureLinkBandwidth(Device& device, Stream& stream, const kv::Layout& layout,
                            int64_t context, double share);

}  // namespace litecache::profile
