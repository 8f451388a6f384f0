// Help texts, made from the declarations of commands and options.
#pragma once

#include <string>
#include <string_view>

#include "cli/command.h"

namespace litecache::cli {

// `text` broken at spaces into lines of at most `width` characters, all but the first indented.
std::string Wrap(std::string_view text, size_t indent, size_t width);

// `litecache --help`.
std::string ProgramHelp(const Program& program = {});

// `litecache COMMAND --help`; `app` has the command's options.
std::string CommandHelp(const Command& command, const CLI::App& app, const Program& program = {});

// The option tables of all commands in Markdown (docs/reference/cli.md holds them).
std::string OptionTables(const Program& program = {});

}  // namespace litecache::cli
