#include "cli/option_sources.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>

#include "cli/help.h"
#include "cli/help_entries.h"
#include "cli/options.h"
#include "cli/options_file.h"
#include "cli/suggest.h"
#include "io/file.h"

namespace litecache::cli {
namespace {

// A command with its options, before anything is read.
struct Declared {
  std::unique_ptr<Command> command;
  CLI::App app;
  GeneralOptions general;

  explicit Declared(std::unique_ptr<Command> made) : command(std::move(made)) {
    app.allow_extras();
    DeclareAll(*command, general, app);
  }
};

// Throws UsageError for tables that are no command and keys that no command has.
void CheckKeys(const Program& program, const std::vector<FileOption>& options,
               const std::string& file) {
  std::vector<std::string> commands;
  std::set<std::string> keys;
  for (auto& command : program.commands()) {
    commands.push_back(command->Name());
    const Declared declared(std::move(command));
    for (const CLI::Option* option : declared.app.get_options()) {
      keys.insert(option->get_lnames().begin(), option->get_lnames().end());
    }
  }
  const auto check = [&](const FileOption& option, const std::string& word, const char* what,
                         const std::vector<std::string>& known) {
    if (std::ranges::find(known, word) != known.end()) return;
    const std::string nearest = Nearest(word, known);
    throw UsageError("{}:{}: '{}' is not {}{}", file, option.line, word, what,
                     nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest));
  };
  for (const FileOption& option : options) {
    if (!option.command.empty()) check(option, option.command, "a command", commands);
    check(option, option.key, "an option of any command", {keys.begin(), keys.end()});
  }
}

// The file's value for an option of a command; null without one. A table of the command's own wins,
// then what comes last.
const FileOption* Find(const std::vector<FileOption>& options, const std::string& command,
                       const CLI::Option& option) {
  const FileOption* found = nullptr;
  for (const FileOption& candidate : options) {
    const auto& names = option.get_lnames();
    if (std::ranges::find(names, candidate.key) == names.end()) continue;
    if (!candidate.command.empty() && candidate.command != command) continue;
    if (found == nullptr || found->command.empty() || !candidate.command.empty()) {
      found = &candidate;
    }
  }
  return found;
}

// The word of the command line that gives the option this value; "" where that is its default.
std::string WordOf(const CLI::Option& option, const std::string& value, const std::string& origin) {
  const auto& names = option.get_lnames();
  if (option.get_items_expected_max() > 0) return "--" + names.front() + "=" + value;
  const auto is = [&](std::initializer_list<const char*> words) {
    return std::ranges::any_of(words, [&](const char* word) { return value == word; });
  };
  if (is({"on", "true", "1", "yes"})) return "--" + names.front();
  if (!is({"off", "false", "0", "no"})) {
    throw UsageError("--{}: '{}' is neither on nor off (from {})", names.front(), value, origin);
  }
  const std::string negated = "no-" + names.front();
  return std::ranges::find(names, negated) == names.end() ? "" : "--" + negated;
}

}  // namespace

std::string VariableOf(const std::string& flag) {
  std::string name = "LITECACHE_" + flag.substr(2);
  std::ranges::transform(name, name.begin(), [](unsigned char c) {
    return c == '-' ? '_' : static_cast<char>(std::toupper(c));
  });
  return name;
}

std::string OptionsFromElsewhere::WithOrigin(const std::string& message) const {
  for (const auto& [flag, origin] : origins) {
    const std::string_view rest = std::string_view(message).substr(
        std::min(message.size(), message.starts_with(flag) ? flag.size() : message.size()));
    if (rest.starts_with(':') || rest.starts_with(' ')) {
      return fmt::format("{} (from {})", message, origin);
    }
  }
  return message;
}

OptionsFromElsewhere CollectOptions(const Program& program, const std::string& command,
                                    const std::vector<std::string>& arguments) {
  auto commands = program.commands();
  Declared declared(std::move(*std::ranges::find_if(
      commands, [&](const auto& candidate) { return candidate->Name() == command; })));
  for (CLI::Option* option : declared.app.get_options()) option->required(false);
  try {
    declared.app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const std::exception&) {
    return {};  // help is asked for, or there is an error, which the command itself reports
  }
  const char* variable = std::getenv("LITECACHE_OPTIONS");
  std::string file = declared.general.options_file;
  if (file.empty() && variable != nullptr) file = variable;
  std::vector<FileOption> of_file;
  if (!file.empty()) {
    of_file = ParseOptionsFile(io::ReadTextFile(file), file);
    CheckKeys(program, of_file, file);
  }
  OptionsFromElsewhere result;
  const auto add = [&](const CLI::Option& option, const std::string& value,
                       const std::string& origin) {
    const std::string word = WordOf(option, value, origin);
    if (word.empty()) return;
    result.words.push_back(word);
    result.origins["--" + option.get_lnames().front()] = origin;
  };
  for (const CLI::Option* option : declared.app.get_options()) {
    const std::string flag = "--" + option->get_lnames().front();
    if (option->count() > 0 || flag.starts_with("--help") || flag == "--options") continue;
    const std::string name = VariableOf(flag);
    const char* value = std::getenv(name.c_str());
    if (value != nullptr && *value != '\0') {
      add(*option, value, name);
    } else if (const FileOption* found = Find(of_file, command, *option)) {
      for (const std::string& text : found->values) add(*option, text, file);
    }
  }
  return result;
}

}  // namespace litecache::cli
