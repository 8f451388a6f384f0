// Measures the rates of a GPU and its link at start, for the number of resident heads (CLO eq. 12):
// a profile only has those of the machine that it was made on.
#pragma once

#include <memory>

#include "kv/heads/profile.h"
#include "litecache/kv_options.h"
#include "model/decoder.h"

namespace litecache::engine {

// The profile with layer_seconds and link_bytes_per_second of this device, if the options use the
// formula and the device is a GPU; otherwise the unchanged profile. Takes about a second.
std::shared_ptr<const kv::Profile> WithMeasuredSpeed(std::shared_ptr<const kv::Profile> profile,
                                                     const KvOptions& options, Device& device,
                                                     Stream& stream, model::Decoder& decoder);

}  // namespace litecache::engine
