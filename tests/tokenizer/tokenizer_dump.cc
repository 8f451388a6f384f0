// Runs a tokenizer over many texts for compare_with_reference.py.
//   tokenizer_dump TOKENIZER_JSON_OR_GGUF < texts > results
// Input: for each text a 32-bit little-endian length and its bytes.
// Output: for each text five records of a 32-bit count and data: ids with special tokens, ids
// without, ids without and with parse_special off (32-bit each), the text of the first ids with
// special tokens kept, and the same with them left out. Exits with 1 if streaming decoding differs.
//   tokenizer_dump --time TOKENIZER_JSON_OR_GGUF < texts
// Prints for each text the processor seconds of encoding and decoding, best of three.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tokenizer/stream_decoder.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace litecache::tokenizer {
namespace {

void Write(const void* data, size_t count, size_t size) {
  const auto header = static_cast<uint32_t>(count);
  if (std::fwrite(&header, 4, 1, stdout) != 1 ||
      (count > 0 && std::fwrite(data, size, count, stdout) != count)) {
    throw FileError("standard output: cannot be written");
  }
}

void Write(const std::vector<int32_t>& ids) { Write(ids.data(), ids.size(), 4); }
void Write(const std::string& text) { Write(text.data(), text.size(), 1); }

std::string DecodeChecked(const std::shared_ptr<const Tokenizer>& tokenizer,
                          std::span<const int32_t> ids, bool skip_special) {
  std::string text = tokenizer->Decode(ids, skip_special);
  StreamDecoder stream(tokenizer, skip_special);
  std::string streamed;
  for (const int32_t id : ids) {
    const std::string part = stream.Add(id);
    if (!IsValidUtf8(part)) throw Error("streaming splits a character");
    streamed += part;
  }
  streamed += stream.Flush();
  if (streamed != text) {
    throw Error(fmt::format("streaming gives \"{}\", decoding \"{}\"", streamed, text));
  }
  return text;
}

bool ReadText(std::string* text) {
  uint32_t size = 0;
  if (std::fread(&size, 4, 1, stdin) != 1) return false;
  text->resize(size);
  if (size > 0 && std::fread(text->data(), 1, size, stdin) != size) {
    throw FileError("standard input: truncated");
  }
  return true;
}

// Processor time, so that other programs on the machine do not count.
double ProcessorSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double Seconds(const std::function<void()>& work) {
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const double begin = ProcessorSeconds();
    work();
    best = std::min(best, ProcessorSeconds() - begin);
  }
  return best;
}

int Main(int argc, char** argv) {
  const bool time = argc == 3 && std::string_view(argv[1]) == "--time";
  if (argc != 2 && !time) {
    throw InvalidArgument("usage: tokenizer_dump [--time] TOKENIZER_JSON < texts > results");
  }
  const std::filesystem::path path = argv[argc - 1];
  const auto tokenizer =
      path.extension() == ".gguf" ? Tokenizer::FromModel(path) : Tokenizer::FromFile(path);
  std::string text;
  while (ReadText(&text)) {
    if (time) {
      std::vector<int32_t> ids;
      const double encode = Seconds([&] { ids = tokenizer->Encode(text); });
      const double decode = Seconds([&] { tokenizer->Decode(ids, false); });
      std::printf("%.4f %.4f %zu\n", encode, decode, ids.size());
      continue;
    }
    const std::vector<int32_t> ids = tokenizer->Encode(text);
    Write(ids);
    Write(tokenizer->Encode(text, {.add_special_tokens = false}));
    Write(tokenizer->Encode(text, {.add_special_tokens = false, .parse_special = false}));
    Write(DecodeChecked(tokenizer, ids, false));
    Write(DecodeChecked(tokenizer, ids, true));
  }
  return 0;
}

}  // namespace
}  // namespace litecache::tokenizer

int main(int argc, char** argv) {
  try {
    return litecache::tokenizer::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tokenizer_dump: %s\n", error.what());
    return 1;
  }
}
