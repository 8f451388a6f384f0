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

std::string Section::Row::Values() const {
  const OptionInfo* row = RowOf(entry);
  return row == nullptr ? "" : row->values;
}

std::string Section::Row::Meaning() const {
  const OptionInfo* row = RowOf(entry);
  return row == nullptr || row->policies.empty()
             ? entry.help
             : fmt::format("{}. For: {}", entry.help, fmt::join(row->policies, ", "));
}

std::vector<Section> ReferenceSections(const Program& program) {
  const std::vector<Page> pages = Pages(program);
  const std::vector<Shared> shared = SharedOptions(pages);
  std::vector<Entry> order;
  for (const Shared& option : shared) order.push_back(option.entry);
  std::vector<Section> sections;
  for (const std::string& group : Groups(order)) {
    sections.push_back({.title = group});
    for (const Shared& option : shared) {
      if (option.entry.group == group) {
        sections.back().rows.push_back({option.entry, Initial(option)});
      }
    }
  }
  for (const Page& page : pages) {
    sections.push_back({.title = "Options of " + page.command->Name()});
    for (const Entry& entry : page.entries) {
      if (Find(shared, entry) == nullptr) {
        sections.back().rows.push_back({entry, Code(entry.initial)});
      }
    }
    sections.back().note = "Shared options: " + SharedBy(page, shared) + ".";
  }
  return sections;
}

std::string OptionReference(const Program& program) {
  const auto escape = [](std::string text) {
    for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) {
      text.insert(at, 1, '\\');
    }
    return text;
  };
  std::string text;
  for (const Section& section : ReferenceSections(program)) {
    text += "### " + section.title + "\n\n";
    if (!section.rows.empty()) {
      text += "| option | default | values | meaning |\n| --- | --- | --- | --- |\n";
    }
    for (const Section::Row& row : section.rows) {
      text += fmt::format("| `{}` | {} | {} | {} |\n", escape(row.entry.name), escape(row.initial),
                          escape(row.Values()), escape(row.Meaning()));
    }
    if (!section.rows.empty()) text += "\n";
    if (!section.note.empty()) text += section.note + "\n\n";
  }
  text.pop_back();  // one newline at the end
  return text;
}

}  // namespace litecache::cli
