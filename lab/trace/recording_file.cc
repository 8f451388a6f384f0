#include "lab/trace/recording_file.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "io/json.h"

namespace litecache::lab {
namespace {

constexpr size_t kLengthBytes = 8;

}  // namespace

std::string RecordingStart(const RecordingKind& kind, const nlohmann::ordered_json& header) {
  const std::string json = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string bytes(kind.magic);
  for (size_t i = 0; i < kLengthBytes; ++i) {
    bytes.push_back(static_cast<char>(json.size() >> (8 * i)));
  }
  return bytes + json;
}

Recording SplitRecording(const RecordingKind& kind, std::span<const std::byte> file,
                         const std::string& name) {
  const size_t start = kind.magic.size() + kLengthBytes;
  if (file.size() < start || std::memcmp(file.data(), kind.magic.data(), kind.magic.size()) != 0) {
    throw FileError("{}: {}: it does not begin with '{}'; make one with `{}`", name, kind.other,
                    kind.magic, kind.command);
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= static_cast<uint64_t>(file[kind.magic.size() + i]) << (8 * i);
  }
  if (length > file.size() - start) {
    throw FileError("{}: ends within 'header': {} bytes are there, {} are needed", name,
                    file.size() - start, length);
  }
  const auto text = file.subspan(start, static_cast<size_t>(length));
  Recording recording;
  recording.header_name = name + " (header)";
  recording.header = io::ParseJson({reinterpret_cast<const char*>(text.data()), text.size()},
                                   recording.header_name);
  recording.body = file.subspan(start + text.size());
  return recording;
}

}  // namespace litecache::lab
