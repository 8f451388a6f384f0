// A file of options: TOML with keys like the flags.
#pragma once

#include <string>
#include <vector>

namespace litecache::cli {

struct FileOption {
  std::string command;              // of the table it stands in, "eval run"; empty: of all commands
  std::string key;                  // "kv-policy"; '_' is written as '-'
  std::vector<std::string> values;  // more than one for a list
  int line = 0;
};

// Reads a subset of TOML: tables ("[serve]", "[eval.run]"), keys, comments; values that are
// strings, lists of them on one line, or single words such as 16, true, 48GiB.
// Throws FileError with the line of what it cannot read.
std::vector<FileOption> ParseOptionsFile(const std::string& text, const std::string& name);

}  // namespace litecache::cli
