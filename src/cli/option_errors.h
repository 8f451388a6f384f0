// Rewrites CLI11's errors about option values: the option, the value, and the expected form.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace litecache::cli {

std::string DescribeOptionError(const CLI::App& app, const CLI::ParseError& error);

}  // namespace litecache::cli
