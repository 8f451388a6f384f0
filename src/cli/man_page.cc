#include <fmt/core.h>

#include <sstream>

#include "cli/reference.h"

namespace litecache::cli {
namespace {

// Text as roff prints it: `code` in bold, hyphens that can be copied.
std::string Roff(std::string_view text) {
  std::string result;
  bool bold = false;
  for (const char c : text) {
    if (c == '`') {
      bold = !bold;
      result += bold ? "\\fB" : "\\fR";
    } else if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
  }
  // A period or an apostrophe at a line's beginning would be a request.
  return result.starts_with('.') || result.starts_with('\'') ? "\\&" + result : result;
}

std::string Lines(const std::string& text) {
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) result += Roff(line) + "\n.br\n";
  return result;
}

}  // namespace

std::string ManPage(const Program& program) {
  std::string title = program.name;
  for (char& c : title) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  std::string text = fmt::format(
      ".TH {} 1 \"\" \"{} {}\"\n.SH NAME\n{} \\- large language models with long contexts\n"
      ".SH SYNOPSIS\n.B {}\n.I COMMAND\n[\\fIOPTIONS\\fR]\n.SH DESCRIPTION\n{}\n.SH COMMANDS\n",
      title, program.name, LC_VERSION, program.name, program.name, Roff(program.summary));
  for (const auto& command : program.commands()) {
    text += fmt::format(".SS {}\n{}\n.PP\n{}", Roff(command->Name()), Roff(command->Summary()),
                        Lines(command->Notes()));
    const auto examples = command->Examples();
    for (const std::string& example : examples) text += ".PP\n.EX\n" + Roff(example) + "\n.EE\n";
  }
  text += ".SH OPTIONS\n";
  for (const Section& section : ReferenceSections(program)) {
    text += ".SS " + Roff(section.title) + "\n";
    for (const Section::Row& row : section.rows) {
      text += fmt::format(".TP\n.B {}\n{}{}{}\n", Roff(row.entry.name), Roff(row.Meaning()),
                          row.Values().empty() ? "" : Roff(" (" + row.Values() + ")"),
                          row.initial.empty() ? "" : Roff(" [" + row.initial + "]"));
    }
    if (!section.note.empty()) text += ".PP\n" + Roff(section.note) + "\n";
  }
  return text;
}

}  // namespace litecache::cli
