#include "cli/help.h"

#include <fmt/core.h>

#include <algorithm>
#include <sstream>

#include "cli/help_entries.h"
#include "cli/options.h"

namespace litecache::cli {
namespace {

constexpr size_t kWidth = 98;
constexpr size_t kColumn = 30;

std::string OptionLine(const Entry& entry, const std::string& text) {
  const std::string gap = entry.name.size() + 4 > kColumn
                              ? "\n" + std::string(kColumn, ' ')
                              : std::string(kColumn - 2 - entry.name.size(), ' ');
  return "  " + entry.name + gap + Wrap(text, kColumn, kWidth) + "\n";
}

// Whether the short help shows it.
bool IsCommon(const Entry& entry, const std::vector<std::string>& chosen) {
  if (std::find(chosen.begin(), chosen.end(), entry.flag) != chosen.end()) return true;
  if (entry.group == kOwnGroup) return chosen.empty();
  if (entry.group == kGeneralGroup) return entry.flag.starts_with("--help");
  if (entry.flag == "--model") return true;
  const OptionInfo* row = RowOf(entry);
  return row != nullptr && row->common;
}

std::string Usage(const Command& command, const Program& program) {
  const std::string words = command.Words();
  return program.name + " " + command.Name() + " [OPTIONS]" + (words.empty() ? "" : " " + words);
}

std::string Heading(const Command& command, const Program& program) {
  return Wrap(command.Summary(), 0, kWidth) + "\n\nUsage: " + Usage(command, program) + "\n";
}

// Wraps lines that are too long and leaves the others as they are.
std::string Paragraphs(const std::string& text) {
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) result += Wrap(line, 0, kWidth) + "\n";
  return result;
}

std::string Examples(const Command& command) {
  std::string text;
  for (const std::string& example : command.Examples()) text += "  " + example + "\n";
  return text.empty() ? "" : "\nExamples:\n" + text;
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

std::string ProgramHelp(const Program& program, const std::string& group) {
  const std::string start = group.empty() ? "" : group + " ";
  std::string text = fmt::format("{}\n\nUsage: {} {}COMMAND [OPTIONS]\n\nCommands:\n",
                                 program.summary, program.name, start);
  for (const auto& command : program.commands()) {
    if (!command->Name().starts_with(start)) continue;
    text += fmt::format("  {:<16} {}\n", command->Name(), Wrap(command->Summary(), 19, kWidth));
  }
  if (!group.empty()) {
    return text +
           fmt::format("\n`{} {}COMMAND --help` shows a command's options.\n", program.name, start);
  }
  text += fmt::format(
      "\nOptions:\n"
      "  -h, --help       This text; `{0} COMMAND --help` for a command's options\n"
      "  --version        Version and what this build can use\n\n"
      "`{0} completion bash` (zsh, fish) prints the shell's completion, `{0} man` the manual\n"
      "page.\n\n"
      "Results go to standard output, everything else to standard error. Exit codes: 0 done,\n"
      "1 failed, 2 wrong usage, 130 interrupted; serve has more.\n",
      program.name);
  return text;
}

std::string ShortHelp(const Command& command, const CLI::App& app, const Program& program) {
  std::string text = Heading(command, program) + "\nCommon options:\n";
  size_t others = 0;
  for (const Entry& entry : Entries(app)) {
    if (IsCommon(entry, command.CommonOptions())) {
      text += OptionLine(entry, entry.ShortText());
    } else {
      ++others;
    }
  }
  if (others > 0) {
    text +=
        fmt::format("\n{} more options: {} {} --help-all\n", others, program.name, command.Name());
  }
  return text + Examples(command);
}

std::string FullHelp(const Command& command, const CLI::App& app, const Program& program) {
  std::string text = Heading(command, program);
  const auto entries = Entries(app);
  for (const auto& group : Groups(entries)) {
    text += "\n" + group + ":\n";
    for (const Entry& entry : entries) {
      if (entry.group == group) text += OptionLine(entry, entry.Text());
    }
  }
  const std::string notes = command.Notes();
  if (!notes.empty()) text += "\n" + Paragraphs(notes);
  return text + Examples(command);
}

void DeclareAll(Command& command, GeneralOptions& general, CLI::App& app) {
  app.set_help_flag("-h,--help", "Print the common options and exit")->group("General");
  app.set_help_all_flag("--help-all", "Print all options and exit")->group("General");
  command.Declare(app);
  general.Declare(app);
}

}  // namespace litecache::cli
