// Arbitrary bytes as a GGUF model: every reader of such a file must end with a result or an Error,
// and with bounded work.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>

#include "base/error.h"
#include "base/logging.h"
#include "base/work_limit.h"
#include "io/checkpoint.h"
#include "io/generation_config.h"
#include "io/gguf.h"
#include "model/config.h"
#include "model/fingerprint.h"
#include "temporary_directory.h"
#include "tokenizer/chat_encoder.h"
#include "tokenizer/tokenizer.h"

namespace {

using namespace litecache;  // NOLINT: a program of one file

template <typename Body>
void Try(const Body& body) {
  try {
    const WorkLimit limit(std::chrono::seconds(5), {});
    body();
  } catch (const WorkStopped& error) {
    LC_CHECK(false, "{}", error.what());
  } catch (const Error&) {
  }
}

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
  Try([&] { io::GenerationConfig::FromModel(path); });
  Try([&] {
    const io::Checkpoint checkpoint(path);
    LC_CHECK(!checkpoint.FileVersions().empty());
    for (const std::string& name : checkpoint.TensorNames()) checkpoint.Find(name);
  });
  Try([&] { model::Fingerprint(path); });
  Try([&] {
    const auto tokenizer = tokenizer::Tokenizer::FindIn(path);
    if (tokenizer == nullptr) return;
    const auto ids = tokenizer->Encode("def add(a, b):\n  return a + b <|x|>");
    tokenizer->Decode(ids, true);
    auto found = tokenizer::ChatTemplate::FindIn(path);
    if (!found) return;
    const tokenizer::ChatEncoder encoder(*tokenizer, std::move(*found));
    encoder.Encode({{{"role", "user"}, {"content", "x"}}});
  });
  return 0;
}
