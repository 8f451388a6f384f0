// Arbitrary bytes as a GGUF model: every reader of such a file must end with a result or an Error,
// and with bounded work.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>

#include "base/error.h"
#include "base/logging.h"
#include "fuzz/read_model.h"
#include "io/gguf.h"
#include "temporary_directory.h"

namespace {

using namespace litecache;  // NOLINT: a program of one file

// Whether the front is one that the other readers see.
bool Parses(std::span<const std::byte> bytes) {
  try {
    for (const auto& [name, tensor] : io::ParseGguf(bytes, "fuzz").tensors) {
      LC_CHECK(tensor.begin <= tensor.end && tensor.end <= bytes.size(), "{}", tensor.ToString());
      for (const int64_t extent : tensor.shape) LC_CHECK(extent > 0);
    }
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool quiet = (InitLogging("off"), true);
  (void)quiet;
  if (!Parses({reinterpret_cast<const std::byte*>(data), size})) return 0;
  static const litecache::testing::TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "m.gguf";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  fuzz::ReadModel(path);
  return 0;
}
