#include "cli/help_entries.h"

#include <algorithm>
#include <utility>

#include "litecache/engine.h"

namespace litecache::cli {

std::string Entry::Text() const { return help + (initial.empty() ? "" : " [" + initial + "]"); }

std::string Entry::ShortText() const {
  const OptionInfo* row = RowOf(*this);
  const bool is_choice = row != nullptr && row->type == "NAME";
  size_t end = help.find(". ");
  while (end != std::string::npos && help.substr(0, end).ends_with("e.g")) {
    end = help.find(". ", end + 1);
  }
  return help.substr(0, std::min(end, help.find("; "))) + (is_choice ? ": " + row->values : "") +
         (initial.empty() ? "" : " [" + initial + "]");
}

std::vector<Entry> Entries(const CLI::App& app) {
  std::vector<Entry> entries;
  for (const CLI::Option* option : app.get_options()) {
    std::string name;
    for (const auto& s : option->get_snames()) name += (name.empty() ? "-" : ", -") + s;
    for (const auto& l : option->get_lnames()) name += (name.empty() ? "--" : ", --") + l;
    if (option->get_items_expected_max() > 0 && !option->get_type_name().empty()) {
      name += " " + option->get_type_name();
    }
    entries.push_back({.group = option->get_group(),
                       .name = std::move(name),
                       .flag = "--" + option->get_lnames().front(),
                       .help = option->get_description(),
                       .initial = option->get_required() ? "required" : option->get_default_str()});
  }
  // Options of the command first, shared options last.
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    const auto rank = [](const std::string& g) {
      return g == kOwnGroup ? 0 : g == kGeneralGroup ? 2 : 1;
    };
    return rank(a.group) < rank(b.group);
  });
  return entries;
}

std::vector<std::string> Groups(const std::vector<Entry>& entries) {
  std::vector<std::string> groups;
  for (const Entry& entry : entries) {
    if (std::find(groups.begin(), groups.end(), entry.group) == groups.end()) {
      groups.push_back(entry.group);
    }
  }
  return groups;
}

const OptionInfo* RowOf(const Entry& entry) {
  for (const auto& row : EngineOptionTable()) {
    if (row.LongFlag() == entry.flag && row.group == entry.group) return &row;
  }
  return nullptr;
}

}  // namespace litecache::cli
