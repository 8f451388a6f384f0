#include "kv/tiers.h"

#include "base/units.h"

namespace litecache::kv {

std::string FormatTiers(const TierBytes& bytes) {
  if (bytes.host == 0) return FormatBytes(bytes.device);
  return FormatBytes(bytes.device) + " on the device and " + FormatBytes(bytes.host) +
         " on the host";
}

}  // namespace litecache::kv
