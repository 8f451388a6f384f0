// Policy `flexgen` (FlexGen): all rows on the host, a share of the heads on the device.
#pragma once

#include "kv/api/policy_registry.h"

namespace litecache::lab::flexgen {

kv::Policy MakePolicy();

}  // namespace litecache::lab::flexgen
