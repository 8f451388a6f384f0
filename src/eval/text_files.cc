#include "eval/text_files.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "io/file.h"
#include "tokenizer/utf8.h"

namespace litecache::eval {

namespace fs = std::filesystem;

std::string ReadTexts(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    std::string text = io::ReadTextFile(path);
    if (!tokenizer::IsValidUtf8(text)) throw FileError("{}: is not UTF-8 text", path.string());
    return text;
  }
  std::vector<fs::path> files;
  for (const auto& entry :
       fs::recursive_directory_iterator(path, fs::directory_options::skip_permission_denied)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::string all;
  for (const fs::path& file : files) {
    const std::string text = io::ReadTextFile(file);
    // Many directories contain binary files among texts.
    if (text.find('\0') != std::string::npos || !tokenizer::IsValidUtf8(text)) continue;
    all += text;
    if (!text.empty() && text.back() != '\n') all += '\n';
  }
  if (all.empty()) throw FileError("{}: holds no text files", path.string());
  return all;
}

}  // namespace litecache::eval
