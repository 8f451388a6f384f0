// Input of the program: files, standard input, lists of token ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace litecache::cli {

// Reads all of standard input. Throws FileError.
std::string ReadStandardInput();

// The bytes of a file, pipe or device; "-" means standard input. Throws FileError.
std::string ReadInput(const std::string& path);

// Token ids separated by white space (commas are also allowed), or JSON: a list, or an object with
// such a list as "ids" or "tokens". Throws an InvalidArgument that gives `name`, the word and its
// position.
std::vector<int32_t> ParseTokenIds(std::string_view text, const std::string& name);

// Reads standard input line by line.
class LineReader {
 public:
  // Reads the next line without its newline. Returns false at the end of the input, and when a
  // signal interrupted the wait (*interrupted is set).
  bool Next(std::string* line, bool* interrupted);

 private:
  std::string buffer_;
  bool ended_ = false;
};

}  // namespace litecache::cli
