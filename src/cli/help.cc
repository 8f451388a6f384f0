#include "cli/help.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/options.h"

namespace litecache::cli {
namespace {

constexpr size_t kWidth = 98;
constexpr size_t kColumn = 30;

// "-t,--threads N"
std::string OptionName(const CLI::Option& option) {
  std::string name;
  for (const auto& s : option.get_snames()) name += (name.empty() ? "-" : ", -") + s;
  for (const auto& l : option.get_lnames()) name += (name.empty() ? "--" : ", --") + l;
  if (option.get_items_expected_max() > 0 && !option.get_type_name().empty()) {
    name += " " + option.get_type_name();
  }
  return name;
}

// The help text with what follows from the declaration.
std::string OptionText(const CLI::Option& option) {
  std::string text = option.get_description();
  if (option.get_required()) text += " (required)";
  if (!option.get_default_str().empty()) text += " [" + option.get_default_str() + "]";
  if (!option.get_envname().empty()) text += " (or environment " + option.get_envname() + ")";
  return text;
}

std::vector<std::string> Groups(const CLI::App& app) {
  std::vector<std::string> groups;
  for (const CLI::Option* option : app.get_options()) {
    const std::string& group = option->get_group();
    if (!group.empty() && std::find(groups.begin(), groups.end(), group) == groups.end()) {
      groups.push_back(group);
    }
  }
  // What is special to the command first, what all commands share last.
  std::stable_sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    const auto rank = [](const std::string& g) {
      return g == "Options" ? 0 : g == "General" ? 2 : 1;
    };
    return rank(a) < rank(b);
  });
  return groups;
}

std::string Usage(const Command& command, const Program& program) {
  const std::string words = command.Words();
  return program.name + " " + command.Name() + " [OPTIONS]" + (words.empty() ? "" : " " + words);
}

std::string Escape(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '|') result += '\\';
    result += c;
  }
  return result;
}

}  // namespace

std::string Wrap(std::string_view text, size_t indent, size_t width) {
  std::string result;
  size_t column = indent;
  bool line_start = true;
  size_t at = 0;
  while (at < text.size()) {
    const size_t space = std::min(text.find(' ', at), text.size());
    const std::string_view word = text.substr(at, space - at);
    if (!line_start && column + 1 + word.size() > width) {
      result += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!line_start) {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
    line_start = false;
    at = space + 1;
  }
  return result;
}

std::string ProgramHelp(const Program& program) {
  std::string text = fmt::format("{}\n\nUsage: {} COMMAND [OPTIONS]\n\nCommands:\n",
                                 program.summary, program.name);
  for (const auto& command : program.commands()) {
    text += fmt::format("  {:<16} {}\n", command->Name(), Wrap(command->Summary(), 19, kWidth));
  }
  text += fmt::format(
      "\nOptions:\n"
      "  -h, --help       This text; `{} COMMAND --help` for a command's options\n"
      "  --version        Version and what this build can use\n\n"
      "Results go to standard output, everything else to standard error. Exit codes: 0 done,\n"
      "1 failed, 2 wrong usage, 130 interrupted; serve has more.\n",
      program.name);
  return text;
}

std::string CommandHelp(const Command& command, const CLI::App& app, const Program& program) {
  std::string text =
      Wrap(command.Summary(), 0, kWidth) + "\n\nUsage: " + Usage(command, program) + "\n";
  for (const auto& group : Groups(app)) {
    text += "\n" + group + ":\n";
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_group() != group) continue;
      const std::string name = OptionName(*option);
      text += "  " + name;
      if (name.size() + 4 > kColumn) {
        text += "\n" + std::string(kColumn, ' ');
      } else {
        text += std::string(kColumn - 2 - name.size(), ' ');
      }
      text += Wrap(OptionText(*option), kColumn, kWidth) + "\n";
    }
  }
  const std::string notes = command.Notes();
  if (!notes.empty()) text += "\n" + notes;
  return text;
}

std::string OptionTables(const Program& program) {
  std::string text;
  GeneralOptions general;
  for (const auto& command : program.commands()) {
    CLI::App app;
    app.set_help_flag("-h,--help", "Print this help and exit")->group("General");
    command->Declare(app);
    general.Declare(app);
    text += "### " + command->Name() + "\n\n| option | meaning |\n| --- | --- |\n";
    for (const auto& group : Groups(app)) {
      for (const CLI::Option* option : app.get_options()) {
        if (option->get_group() != group) continue;
        text += "| `" + Escape(OptionName(*option)) + "` | " + Escape(OptionText(*option)) + " |\n";
      }
    }
    text += "\n";
  }
  return text;
}

}  // namespace litecache::cli
