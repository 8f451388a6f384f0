// What the machine does a second, for the number of resident heads (CLO eq. 12).
#pragma once

#include <cstdint>

#include "device/device.h"
#include "kv/cache.h"
#include "model/decoder.h"

namespace litecache::profile {

// Median seconds from one layer's attention to the next one's in a decode step of batch 1 that
// attends `rows` rows: what a prefetch may take without being waited for.
double MeasureLayerSeconds(Device& device, Stream& stream, model::Decoder& decoder, int64_t rows);

// Bytes a second from a host store's pages to cache slots, as a refresh moves them: `share` of a
// head's `context` rows, at random, head after head, over more heads than a processor's cache
// holds. Median of several passes.
double MeasureLinkBandwidth(Device& device, Stream& stream, const kv::Layout& layout,
                            int64_t context, double share);

}  // namespace litecache::profile
