// One safetensors file: 8 bytes of header length, a JSON header, the tensors' bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "io/tensor_file.h"

namespace litecache::io {

// Parses a header. `head` holds the first bytes of a file of file_size bytes (at least the header).
// Checks what the format requires: header length within the file and at most 100 MB, JSON without
// duplicate names, dtype x shape = byte range without overflow, ranges inside the file, no
// overlaps, no bytes outside of tensors. Throws FileError starting with `name`.
std::map<std::string, TensorInfo> ParseSafetensors(std::span<const std::byte> head,
                                                   uint64_t file_size, const std::string& name);

// The texts of "__metadata__" by name; empty if the header has none. Throws FileError for a header
// that is not a JSON object and for entries that are not texts.
std::map<std::string, std::string> ParseSafetensorsMetadata(std::span<const std::byte> head,
                                                            uint64_t file_size,
                                                            const std::string& name);

// A memory-mapped safetensors file.
class Safetensors : public TensorFile {
 public:
  // Throws FileError as ParseSafetensors does.
  explicit Safetensors(const std::filesystem::path& path);
};

}  // namespace litecache::io
