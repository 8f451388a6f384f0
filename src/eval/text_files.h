// Reads the text of files and directories.
#pragma once

#include <filesystem>
#include <string>

namespace litecache::eval {

// The text of a file, or of all UTF-8 text files in a directory and its subdirectories in the order
// of their paths, each ending with a newline. Throws FileError: missing, unreadable, not UTF-8, a
// directory without text files.
std::string ReadTexts(const std::filesystem::path& path);

}  // namespace litecache::eval
