// Arbitrary bytes as recorded blocks: expects an error, or blocks that attention can work with, at
// any length. The same bytes are also tried as the body behind a header.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/error.h"
#include "lab/blocks/block_patterns.h"

namespace {

using litecache::lab::BlockPatterns;

void Try(std::span<const std::byte> bytes) {
  try {
    const BlockPatterns p = BlockPatterns::Parse(bytes, "fuzz");
    for (int64_t row = 0; row < p.query_blocks(); ++row) {
      LC_CHECK(p.Keeps(p.layers - 1, p.q_heads - 1, row, 0));
      LC_CHECK(p.Keeps(p.layers - 1, p.q_heads - 1, row, row * p.query_rows / 128));
    }
    const double share = p.KeptShare(3 * p.tokens, 2, 2);
    LC_CHECK(share > 0 && share <= 1.01, "{}", share);
    const std::string written = p.Bytes();
    BlockPatterns::Parse({reinterpret_cast<const std::byte*>(written.data()), written.size()},
                         "again");
  } catch (const litecache::FileError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Try({reinterpret_cast<const std::byte*>(data), size});
  std::string file = "LCBLOCK1";
  const std::string header =
      R"({"version":1,"layers":1,"q_heads":2,"tokens":6144,"query_rows":192,"mass":0.9})";
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<char>(header.size() >> (8 * i)));
  file += header;
  file.append(reinterpret_cast<const char*>(data), size);
  Try({reinterpret_cast<const std::byte*>(file.data()), file.size()});
  return 0;
}
