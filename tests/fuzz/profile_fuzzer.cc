// Arbitrary bytes as a profile: an error, or arrays with the shapes given by its fields. The fuzzer
// rarely gets a header past the length, so the same bytes are also tried as the metadata's text.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/error.h"
#include "io/safetensors_writer.h"
#include "kv/heads/profile.h"

namespace {

using litecache::kv::Profile;

void Try(std::span<const std::byte> bytes) {
  try {
    const Profile p = Profile::Parse(bytes, "fuzz");
    const auto heads = static_cast<size_t>(p.layers * p.kv_heads);
    LC_CHECK(p.similarity.empty() || p.similarity.size() == heads);
    LC_CHECK(p.kept.empty() || p.kept.size() == heads * p.tau_grid.size());
    for (const auto& [bits, weights] : p.hata) {
      LC_CHECK(weights.size() == heads * static_cast<size_t>(p.head_dim * bits));
    }
    LC_CHECK(std::isfinite(p.FittedThreshold(p.layers - 1, p.kv_heads - 1, 0.9, false)));
  } catch (const litecache::FileError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  Try(bytes);
  litecache::io::SafetensorsWriter writer;
  writer.SetMetadata("format", "litecache-profile");
  writer.SetMetadata("profile", std::string(reinterpret_cast<const char*>(data), size));
  const std::string file = writer.Bytes();
  Try({reinterpret_cast<const std::byte*>(file.data()), file.size()});
  return 0;
}
