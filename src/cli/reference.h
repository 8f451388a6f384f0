// The reference of all options in Markdown, which docs/reference/cli.md ends with.
#pragma once

#include <string>

#include "cli/command.h"

namespace litecache::cli {

// Tables of the options that several commands share, one per heading, then every command with its
// own options.
std::string OptionReference(const Program& program = {});

}  // namespace litecache::cli
