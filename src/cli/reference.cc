#include "cli/reference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/help.h"
#include "cli/help_entries.h"
#include "cli/options.h"

namespace litecache::cli {
namespace {

using Names = std::vector<std::string>;

// One command in the reference.
struct Page {
  std::unique_ptr<Command> command;
  std::vector<Entry> entries;
};

// An option that several commands share.
struct Shared {
  Entry entry;
  std::vector<std::pair<std::string, Names>> initial;  // default, and the commands that use it
};

std::vector<Page> Pages(const Program& program) {
  std::vector<Page> pages;
  for (auto& command : program.commands()) {
    CLI::App app;
    GeneralOptions general;
    DeclareAll(*command, general, app);
    pages.push_back({std::move(command), Entries(app)});
  }
  return pages;
}

// Options that appear under the same heading in several commands.
std::vector<Shared> SharedOptions(const std::vector<Page>& pages) {
  std::vector<Shared> all;
  for (const Page& page : pages) {
    for (const Entry& entry : page.entries) {
      if (entry.group == kOwnGroup) continue;
      auto found = std::find_if(all.begin(), all.end(), [&](const Shared& shared) {
        return shared.entry.group == entry.group && shared.entry.flag == entry.flag;
      });
      if (found == all.end()) found = all.insert(all.end(), {entry, {}});
      auto value = std::find_if(found->initial.begin(), found->initial.end(),
                                [&](const auto& v) { return v.first == entry.initial; });
      if (value == found->initial.end()) {
        value = found->initial.insert(found->initial.end(), {entry.initial, {}});
      }
      value->second.push_back(page.command->Name());
    }
  }
  std::erase_if(all, [](const Shared& shared) {
    return shared.initial.size() == 1 && shared.initial[0].second.size() == 1;
  });
  return all;
}

const Shared* Find(const std::vector<Shared>& all, const Entry& entry) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Shared& shared) {
    return shared.entry.group == entry.group && shared.entry.flag == entry.flag;
  });
  return found == all.end() ? nullptr : &*found;
}

std::string Escape(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '|') result += '\\';
    result += c;
  }
  return result;
}

std::string Code(const std::string& text) {
  return text.empty() || text == "required" ? text : "`" + text + "`";
}

// The default of most commands first, then the others with the names of their commands.
std::string Initial(const Shared& shared) {
  auto values = shared.initial;
  std::stable_sort(values.begin(), values.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  std::string text = Code(values[0].first);
  for (size_t i = 1; i < values.size(); ++i) {
    text += fmt::format("{}{} ({})", text.empty() ? "" : "; ",
                        values[i].first.empty() ? "none" : Code(values[i].first),
                        fmt::join(values[i].second, ", "));
  }
  return text;
}

std::string Table(const std::vector<std::pair<Entry, std::string>>& rows) {
  std::string text = "| option | default | values | meaning |\n| --- | --- | --- | --- |\n";
  for (const auto& [entry, initial] : rows) {
    const OptionInfo* row = RowOf(entry);
    std::string meaning = entry.help;
    if (!entry.environment.empty()) meaning += " (or environment `" + entry.environment + "`)";
    if (row != nullptr && !row->policies.empty()) {
      meaning += fmt::format(". For: {}", fmt::join(row->policies, ", "));
    }
    text += fmt::format("| `{}` | {} | {} | {} |\n", Escape(entry.name), Escape(initial),
                        row == nullptr ? "" : Escape(row->values), Escape(meaning));
  }
  return text + "\n";
}

// "Model, KV cache, --threads": headings whose options the command has completely, and single
// options.
std::string SharedBy(const Page& page, const std::vector<Shared>& shared) {
  std::map<std::string, size_t> wanted;
  for (const Shared& option : shared) ++wanted[option.entry.group];
  std::map<std::string, Names> had;
  for (const Entry& entry : page.entries) {
    if (Find(shared, entry) != nullptr) had[entry.group].push_back(Code(entry.flag));
  }
  Names names;
  for (const std::string& group : Groups(page.entries)) {
    if (!had.contains(group)) continue;
    if (had[group].size() == wanted[group]) {
      names.push_back(group);
    } else {
      names.insert(names.end(), had[group].begin(), had[group].end());
    }
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::string OptionReference(const Program& program) {
  const std::vector<Page> pages = Pages(program);
  const std::vector<Shared> shared = SharedOptions(pages);
  std::vector<Entry> order;
  for (const Shared& option : shared) order.push_back(option.entry);
  std::string text;
  for (const std::string& group : Groups(order)) {
    std::vector<std::pair<Entry, std::string>> rows;
    for (const Shared& option : shared) {
      if (option.entry.group == group) rows.emplace_back(option.entry, Initial(option));
    }
    text += "### " + group + "\n\n" + Table(rows);
  }
  for (const Page& page : pages) {
    std::vector<std::pair<Entry, std::string>> rows;
    for (const Entry& entry : page.entries) {
      if (Find(shared, entry) == nullptr) rows.emplace_back(entry, Code(entry.initial));
    }
    text += "### Options of " + page.command->Name() + "\n\n" + (rows.empty() ? "" : Table(rows)) +
            "Shared options: " + SharedBy(page, shared) + ".\n\n";
  }
  text.pop_back();  // one newline at the end
  return text;
}

}  // namespace litecache::cli
