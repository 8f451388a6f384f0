// Options from elsewhere than the command line, which wins over them: environment variables, then
// the file of --options.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/command.h"

namespace litecache::cli {

// "LITECACHE_KV_POLICY" for "--kv-policy".
std::string VariableOf(const std::string& flag);

struct OptionsFromElsewhere {
  std::vector<std::string> words;              // "--threads=4": before those of the command line
  std::map<std::string, std::string> origins;  // of these: "--threads" to "LITECACHE_THREADS"

  // An error's message with the place that its option comes from, where that is not the command
  // line.
  std::string WithOrigin(const std::string& message) const;
};

// For a command with these arguments. Throws FileError for the file, UsageError for a key that no
// command has.
OptionsFromElsewhere CollectOptions(const Program& program, const std::string& command,
                                    const std::vector<std::string>& arguments);

}  // namespace litecache::cli
