// Help texts, generated from the declarations of commands and options.
#pragma once

#include <string>
#include <string_view>

#include "cli/command.h"

namespace litecache::cli {

struct GeneralOptions;

// Wraps `text` at spaces to lines of at most `width` characters; all but the first are indented.
std::string Wrap(std::string_view text, size_t indent, size_t width);

// `litecache --help`; of a group, `litecache eval --help`.
std::string ProgramHelp(const Program& program = {}, const std::string& group = "");

// `litecache COMMAND --help`: usage, common options and examples, on one screen. `app` contains the
// command's options.
std::string ShortHelp(const Command& command, const CLI::App& app, const Program& program = {});

// `litecache COMMAND --help-all`: every option.
std::string FullHelp(const Command& command, const CLI::App& app, const Program& program = {});

// Declares a command's options, --help, --help-all and the options that every command has.
void DeclareAll(Command& command, GeneralOptions& general, CLI::App& app);

}  // namespace litecache::cli
