#include "lab/policies/infinigen/options.h"

#include <array>

#include "base/option_makers.h"

namespace litecache {

std::span<const Option<InfiniGenOptions>> InfiniGenOptionTable() {
  using namespace option_rows;  // NOLINT(google-build-using-namespace): functions that make rows
  using O = InfiniGenOptions;
  static const auto rows = std::to_array<Option<O>>({
      Row("partial", &O::partial, Share(), "Share of the skewed channels that rows are chosen by"),
      Row("alpha", &O::alpha, Real(0, 1e6),
          "Rows whose score is at most this far below the best one are fetched"),
      Row("cap", &O::cap, Share(), "At most this share of the context is fetched"),
      Row("dense_layers", &O::dense_layers, Whole(1, 1 << 20),
          "First layers that attend every row; nothing comes before layer 0 that its rows could be "
          "predicted from"),
  });
  return rows;
}

}  // namespace litecache
