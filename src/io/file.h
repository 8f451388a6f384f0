// Whole files as text: reads with a size limit, and writes that leave either the old file or the
// new one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace litecache::io {

// Larger than any tokenizer.json in use (Gemma's is 34 MB); anything above is not a text file.
inline constexpr uint64_t kMaxTextBytes = uint64_t{1} << 30;

// The file's bytes. Throws FileError: missing, a directory, unreadable, larger than max_bytes.
std::string ReadTextFile(const std::filesystem::path& path, uint64_t max_bytes = kMaxTextBytes);

// Writes a temporary file beside `path`, flushes it to disk and renames it to `path`. Throws
// FileError (disk full, no permission, ...) and then leaves the old file unchanged.
void WriteFileAtomically(const std::filesystem::path& path, std::string_view contents);

}  // namespace litecache::io
