// A command's options as the help and the reference show them.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "litecache/options.h"

namespace litecache::cli {

inline constexpr std::string_view kOwnGroup = "Options";  // CLI11's default group
inline constexpr std::string_view kGeneralGroup = "General";

// An option as the help shows it.
struct Entry {
  std::string group;
  std::string name;  // "-t, --threads N"
  std::string flag;  // "--threads"
  std::string help;
  std::string initial;  // its value where it is not given, or "required"

  // The help text with additions derived from the declaration.
  std::string Text() const;
  // The first sentence of the help or its first part, with the accepted names.
  std::string ShortText() const;
};

// All options of a command: its own first, those of every command last.
std::vector<Entry> Entries(const CLI::App& app);

// The headings, in the order of the entries.
std::vector<std::string> Groups(const std::vector<Entry>& entries);

// The row of the option tables that defines it; null if none does.
const OptionInfo* RowOf(const Entry& entry);

}  // namespace litecache::cli
