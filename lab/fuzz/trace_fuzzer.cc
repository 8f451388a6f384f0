// Arbitrary bytes as a trace: expects an error, or sets and ids within the bounds given by the
// header. The fuzzer rarely gets a header past its length, so the same bytes are also tried as a
// trace's body.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/error.h"
#include "lab/trace/trace.h"

namespace {

using litecache::lab::Trace;

void Try(std::span<const std::byte> bytes) {
  try {
    const Trace t = Trace::Parse(bytes, "fuzz");
    LC_CHECK(t.rows.size() ==
             static_cast<size_t>((1 + t.distances) * t.layers * t.kv_heads * t.steps));
    for (const auto& rows : t.rows) {
      LC_CHECK(std::is_sorted(rows.begin(), rows.end()));
      LC_CHECK(rows.empty() || (rows.front() >= 0 && rows.back() < t.context));
    }
    for (const uint16_t id : t.cluster_ids) LC_CHECK(id < t.clusters);
    const int64_t last = t.layers - 1, distance = t.distances;
    LC_CHECK(t.Cosine(last, 0, {0, distance}, {t.steps - 1, 0}) <= 1.01f);
    LC_CHECK(static_cast<int64_t>(t.Rows(last, 0, {0, distance}).size()) <= t.context);
    const std::string written = t.Bytes();
    Trace::Parse({reinterpret_cast<const std::byte*>(written.data()), written.size()}, "again");
  } catch (const litecache::FileError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Try({reinterpret_cast<const std::byte*>(data), size});
  std::string file = "LCTRACE1";
  const std::string header =
      R"({"version":3,"layers":2,"q_heads":1,"kv_heads":1,"context":300,"steps":3,"distances":1,"lags":1,"budget":0.1,"clusters":4,"ranked":1})";
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<char>(header.size() >> (8 * i)));
  file += header + std::string(8, '\0');  // importance 0
  file.append(reinterpret_cast<const char*>(data), size);
  Try({reinterpret_cast<const std::byte*>(file.data()), file.size()});
  return 0;
}
