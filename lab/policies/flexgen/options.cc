#include "lab/policies/flexgen/options.h"

#include <array>

#include "base/option_makers.h"

namespace litecache {

std::span<const Option<FlexGenOptions>> FlexGenOptionTable() {
  using namespace option_rows;  // NOLINT(google-build-using-namespace): functions that make rows
  using O = FlexGenOptions;
  static const auto rows = std::to_array<Option<O>>({
      Row("device_share", &O::device_share, Share(),
          "Share of the KV heads whose rows stay on the device"),
  });
  return rows;
}

}  // namespace litecache
