// What CLI11 objects to in an option's value, in this program's words: the option, the value, and
// what it has to be.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace litecache::cli {

std::string DescribeOptionError(const CLI::App& app, const CLI::ParseError& error);

}  // namespace litecache::cli
