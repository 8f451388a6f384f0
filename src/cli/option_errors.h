// Rewrites CLI11's errors about option values: the option, the value, and the expected form.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace litecache::cli {

std::string DescribeOptionError(const CLI::App& app, const CLI::ParseError& error);

// An engine's error that begins with the name of an option ("max_context = 5 ...") with the flag
// instead ("--max-context = 5 ..."), where the command has that flag.
std::string WithFlag(const CLI::App& app, const std::string& message);

}  // namespace litecache::cli
