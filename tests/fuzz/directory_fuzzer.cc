// A whole model directory: files after lines "=== NAME". Whatever they contain, every reader of the
// directory must end with a result or an Error, and with bounded work.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/logging.h"
#include "fuzz/read_model.h"
#include "temporary_directory.h"

namespace {

using namespace litecache;  // NOLINT: a program of one file

constexpr std::string_view kMark = "=== ";

// Names outside the directory are excluded.
bool IsFileName(std::string_view name) {
  return !name.empty() && name.size() < 100 && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

void WriteFiles(std::string_view input, const std::filesystem::path& directory) {
  for (int files = 0; input.starts_with(kMark) && files < 8; ++files) {
    input.remove_prefix(kMark.size());
    const size_t line = std::min(input.find('\n'), input.size());
    const std::string name(input.substr(0, line));
    input.remove_prefix(std::min(line + 1, input.size()));
    const size_t end = input.find("\n=== ");
    const std::string_view contents = input.substr(0, end);
    if (IsFileName(name)) {
      std::ofstream(directory / name, std::ios::binary)
          .write(contents.data(), static_cast<std::streamsize>(contents.size()));
    }
    if (end == std::string_view::npos) return;
    input.remove_prefix(end + 1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool quiet = (InitLogging("off"), true);
  (void)quiet;
  static const litecache::testing::TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "model";
  std::filesystem::remove_all(path);
  std::filesystem::create_directory(path);
  WriteFiles({reinterpret_cast<const char*>(data), size}, path);
  fuzz::ReadModel(path);
  return 0;
}
