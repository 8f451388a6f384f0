// The texts that a profile is measured on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace litecache::profile {

struct Document {
  std::string name;
  std::string text;
};

// One document per line: JSON with a field "text", or with "input" followed by "outputs", as
// `litecache eval generate` writes them. Messages start with `name`. Throws FileError.
std::vector<Document> ParseLines(std::string_view lines, const std::string& name);

// A file is one document; a .jsonl file has one per line (ParseLines); a directory has one per
// subfolder, made of the subfolder's UTF-8 text files in the order of their names. Files in
// directories that are not text or exceed 4 MB are skipped. At most 256 MB are read. Throws
// FileError for missing, empty or malformed input.
std::vector<Document> ReadDocuments(const std::filesystem::path& path);

// `count` windows of at most `context` tokens, spread evenly over the documents; fewer if the texts
// are too short. A long document is cut, consecutive short ones are joined; each window ends where
// a document (or its cut) ends, so that answers at a document's end are among the last tokens.
// Windows shorter than `least` tokens are left out. Throws an InvalidArgument with the numbers if
// no window remains.
std::vector<std::vector<int32_t>> CutWindows(const std::vector<Document>& documents,
                                             const tokenizer::Tokenizer& tokenizer, int64_t context,
                                             int64_t count, int64_t least);

}  // namespace litecache::profile
