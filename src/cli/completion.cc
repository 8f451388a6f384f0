#include "cli/completion.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "cli/help.h"
#include "cli/help_entries.h"
#include "cli/options.h"

namespace litecache::cli {
namespace {

// Each asks the program with the words up to the cursor.
constexpr std::string_view kBash =
    R"sh(_FUNCTION() {
  local IFS=$'\n'
  COMPREPLY=($(PROGRAM --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f1))
}
complete -o default -F _FUNCTION PROGRAM
)sh";
constexpr std::string_view kZsh =
    R"sh(#compdef PROGRAM
_FUNCTION() {
  local -a answers
  answers=(${(f)"$(PROGRAM --complete "${(@)words[2,CURRENT]}" 2>/dev/null | sed 's/:/\\:/g; s/\t/:/')"})
  if (( $#answers )); then _describe PROGRAM answers; else _files; fi
}
if [ "$funcstack[1]" = "_FUNCTION" ]; then _FUNCTION "$@"; else compdef _FUNCTION PROGRAM; fi
)sh";
constexpr std::string_view kFish =
    R"sh(function __FUNCTION_complete
  set -l words (commandline -opc) (commandline -ct)
  set -l answers (PROGRAM --complete $words[2..] 2>/dev/null)
  if count $answers >/dev/null
    printf '%s\n' $answers
  else
    __fish_complete_path (commandline -ct)
  end
end
complete -c PROGRAM -f -a '(__FUNCTION_complete)'
)sh";

// The names in "auto, full, litecache"; none where the values are described in words.
std::vector<std::string> Choices(const OptionInfo& row) {
  std::vector<std::string> choices;
  std::string rest = row.values;
  for (size_t comma = 0; comma != std::string::npos;) {
    comma = rest.find(", ");
    choices.push_back(rest.substr(0, comma));
    if (comma != std::string::npos) rest = rest.substr(comma + 2);
  }
  const bool are_names = choices.size() > 1 && std::ranges::none_of(choices, [](const auto& c) {
                           return c.find(' ') != std::string::npos;
                         });
  return are_names ? choices : std::vector<std::string>();
}

std::string Of(Command& command, const std::string& previous, const std::string& word) {
  CLI::App app;
  GeneralOptions general;
  DeclareAll(command, general, app);
  std::string text;
  for (const Entry& entry : Entries(app)) {
    const bool takes_value = entry.name.find(' ', entry.name.find("--")) != std::string::npos;
    const OptionInfo* row = RowOf(entry);
    if (takes_value && app.get_option(entry.flag)->check_name(previous)) {
      if (row == nullptr) return "";
      text.clear();
      for (const std::string& choice : Choices(*row)) {
        if (choice.starts_with(word)) text += choice + "\n";
      }
      return text;
    }
    if (word.starts_with('-') && entry.flag.starts_with(word)) {
      text += entry.flag + "\t" + entry.ShortText() + "\n";
    }
  }
  return text;
}

}  // namespace

std::string CompletionScript(const Program& program, const std::string& shell) {
  std::string text(shell == "bash" ? kBash : shell == "zsh" ? kZsh : shell == "fish" ? kFish : "");
  if (text.empty()) throw UsageError("completion: '{}' is not bash, zsh or fish", shell);
  std::string function = program.name;
  std::ranges::replace(function, '-', '_');
  for (const auto& [what, with] : {std::pair("PROGRAM", program.name), {"FUNCTION", function}}) {
    for (size_t at = 0; (at = text.find(what, at)) != std::string::npos;) {
      text.replace(at, std::string_view(what).size(), with);
    }
  }
  return text;
}

std::string Completions(const Program& program, const std::vector<std::string>& words) {
  if (words.empty()) return "";
  const std::string& word = words.back();
  std::set<std::string> starts;
  for (const auto& command : program.commands()) {
    const std::string name = command->Name();
    const size_t space = name.find(' ');
    const size_t used = space == std::string::npos ? 1 : 2;
    if (words.size() > used && name == (used == 1 ? words[0] : words[0] + " " + words[1])) {
      return Of(*command, words[words.size() - 2], word);
    }
    if (words.size() == 1) {
      starts.insert(space == std::string::npos ? name + "\t" + command->Summary()
                                               : name.substr(0, space));
    } else if (words.size() == 2 && used == 2 && name.starts_with(words[0] + " ")) {
      starts.insert(name.substr(space + 1) + "\t" + command->Summary());
    }
  }
  if (words.size() == 1) starts.insert({"--help", "--version", "completion", "man"});
  if (words.size() == 2 && words[0] == "completion") starts = {"bash", "zsh", "fish"};
  std::string text;
  for (const std::string& start : starts) {
    if (start.starts_with(word)) text += start + "\n";
  }
  return text;
}

}  // namespace litecache::cli
