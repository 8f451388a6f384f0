// Formats the bytes of the two tiers.
#pragma once

#include <string>

#include "litecache/kv_stats.h"

namespace litecache::kv {

// Text such as "1.5 GiB" or "1.5 GiB on the device and 3.0 GiB on the host".
std::string FormatTiers(const TierBytes& bytes);

}  // namespace litecache::kv
