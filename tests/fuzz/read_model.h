// Everything that reads a model's files, for fuzz targets.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/work_limit.h"
#include "io/checkpoint.h"
#include "io/generation_config.h"
#include "model/fingerprint.h"
#include "tokenizer/chat_encoder.h"
#include "tokenizer/tokenizer.h"

namespace litecache::fuzz {

// `body` must end with a result or an Error, and with bounded work.
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

// path: a model directory or a GGUF file.
inline void ReadModel(const std::filesystem::path& path) {
  Try([&] { io::GenerationConfig::FromModel(path); });
  Try([&] {
    const io::Checkpoint checkpoint(path);
    LC_CHECK(!checkpoint.FileVersions().empty());
    for (const std::string& name : checkpoint.TensorNames()) checkpoint.Find(name);
  });
  Try([&] { model::Fingerprint(path); });
  Try([&] {
    const auto tokenizer = tokenizer::Tokenizer::FromModel(path);
    const auto ids = tokenizer->Encode("def add(a, b):\n  return a + b <|x|>");
    tokenizer->Decode(ids, true);
    auto found = tokenizer::ChatTemplate::FindIn(path);
    if (!found) return;
    const tokenizer::ChatEncoder encoder(*tokenizer, std::move(*found));
    encoder.Encode({{{"role", "user"}, {"content", "x"}}});
  });
}

}  // namespace litecache::fuzz
