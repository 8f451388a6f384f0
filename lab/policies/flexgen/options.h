// The settings of policy `flexgen` at their published defaults, in KvOptions.settings.
#pragma once

#include <cstdint>
#include <span>

#include "litecache/options.h"

namespace litecache {

// FlexGen: all rows on the host; a layer's rows are fetched while the previous layer computes;
// exact.
struct FlexGenOptions {
  double device_share = 0;  // share of the KV heads whose rows stay on the device, in [0, 1]
};

std::span<const Option<FlexGenOptions>> FlexGenOptionTable();

}  // namespace litecache
