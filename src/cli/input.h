// What the program reads: files, standard input, lists of token ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace litecache::cli {

// Everything standard input holds. Throws FileError.
std::string ReadStandardInput();

// The bytes of a file, pipe or device; "-" means standard input. Throws FileError.
std::string ReadInput(const std::string& path);

// Token ids separated by white space (commas are allowed too), or JSON: a list, or an object whose
// "ids" or "tokens" is one.
// Throws InvalidArgument naming `name`, the word and where it stands.
std::vector<int32_t> ParseTokenIds(std::string_view text, const std::string& name);

// Standard input line after line.
class LineReader {
 public:
  // The next line without its newline. Returns false at the end of the input, and when a signal
  // interrupted the waiting (*interrupted is set).
  bool Next(std::string* line, bool* interrupted);

 private:
  std::string buffer_;
  bool ended_ = false;
};

}  // namespace litecache::cli
