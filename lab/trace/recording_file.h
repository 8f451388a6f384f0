// What the files of recordings have in common: eight characters that name their kind, the length
// of a header in 8 bytes, the header, which is JSON, and a body.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "lab/namespaces.h"

namespace litecache::lab {

struct RecordingKind {
  std::string_view magic;    // the first eight characters
  std::string_view other;    // what a file without them is: "not a trace"
  std::string_view command;  // which one makes such a file
};

struct Recording {
  nlohmann::json header;
  std::string header_name;  // for errors in it
  std::span<const std::byte> body;
};

// All bytes in front of the body.
std::string RecordingStart(const RecordingKind& kind, const nlohmann::ordered_json& header);
// The parts of a file; name: of the file, for errors. Throws FileError.
Recording SplitRecording(const RecordingKind& kind, std::span<const std::byte> file,
                         const std::string& name);

}  // namespace litecache::lab
