#include "cli/app.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>

#include "base/error.h"
#include "base/printable.h"
#include "cli/command.h"
#include "cli/completion.h"
#include "cli/exit_codes.h"
#include "cli/help.h"
#include "cli/interrupt.h"
#include "cli/option_errors.h"
#include "cli/option_sources.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/reference.h"
#include "cli/suggest.h"
#include "cli/version.h"

namespace litecache::cli {
namespace {

void Print(const std::string& text) {
  Output output;
  output.Write(text);
  output.Flush();
}

std::string DidYouMean(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string nearest = Nearest(word, candidates);
  return nearest.empty() ? "" : fmt::format(" Did you mean '{}'?", nearest);
}

// The command that `arguments` start with; *used receives the number of words in its name.
std::unique_ptr<Command> FindCommand(const Program& program,
                                     const std::vector<std::string>& arguments, size_t* used) {
  auto commands = program.commands();
  std::vector<std::string> names;
  const std::string& first = arguments[0];
  const std::string both = arguments.size() > 1 ? first + " " + arguments[1] : first;
  std::string group;  // commands of the group that the first word names
  for (auto& command : commands) {
    const std::string name = command->Name();
    if (name == first || name == both) {
      *used = name == first ? 1 : 2;
      return std::move(command);
    }
    if (name.starts_with(first + " ")) group += (group.empty() ? "" : ", ") + name;
    names.push_back(name);
  }
  if (first.starts_with("-")) {
    throw UsageError("{}: options follow the command: {} COMMAND [OPTIONS]", first, program.name);
  }
  if (arguments.size() == 1 && !group.empty()) {
    throw UsageError("'{}' is not a command by itself; there are: {}", first, group);
  }
  const std::string& word = group.empty() ? first : both;
  throw UsageError("'{}' is not a command.{} `{} --help` lists them", word, DidYouMean(word, names),
                   program.name);
}

// The arguments that CLI11 did not parse: positional words, or an unknown option.
std::vector<std::string> Words(const Program& program, const Command& command,
                               const CLI::App& app) {
  std::vector<std::string> words;
  bool options_ended = false;
  for (const auto& word : app.remaining()) {
    if (!options_ended && word == "--") {
      options_ended = true;
    } else if (!options_ended && word.size() > 1 && word[0] == '-') {
      std::vector<std::string> names;
      for (const CLI::Option* option : app.get_options()) {
        for (const auto& name : option->get_lnames()) names.push_back("--" + name);
      }
      const std::string name = word.substr(0, word.find('='));
      throw UsageError("'{}' is not an option of {}.{} `{} {} --help-all` lists them", name,
                       command.Name(), DidYouMean(name, names), program.name, command.Name());
    } else {
      words.push_back(word);
    }
  }
  if (!words.empty() && command.Words().empty()) {
    std::error_code ignored;
    const bool is_model = app.get_option_no_throw("--model") != nullptr &&
                          std::filesystem::is_directory(words[0], ignored);
    throw UsageError("'{}': {} takes options only;{} `{} {} --help` lists them", words[0],
                     command.Name(),
                     is_model ? fmt::format(" did you mean --model {}?", words[0]) : "",
                     program.name, command.Name());
  }
  return words;
}

bool IsGroup(const Program& program, const std::string& word) {
  return std::ranges::any_of(program.commands(), [&](const auto& command) {
    return command->Name().starts_with(word + " ");
  });
}

int RunCommand(const Program& program, const std::vector<std::string>& arguments) {
  const bool asks_for_help =
      arguments.size() == 2 && (arguments[1] == "-h" || arguments[1].starts_with("--help"));
  if (asks_for_help && IsGroup(program, arguments[0])) {
    Print(ProgramHelp(program, arguments[0]));
    return kOk;
  }
  size_t used = 0;
  const auto command = FindCommand(program, arguments, &used);
  CLI::App app;
  app.allow_extras();
  GeneralOptions general;
  DeclareAll(*command, general, app);
  std::vector<std::string> own(arguments.begin() + static_cast<std::ptrdiff_t>(used),
                               arguments.end());
  const OptionsFromElsewhere more = CollectOptions(program, command->Name(), own);
  own.insert(own.begin(), more.words.begin(), more.words.end());
  std::ranges::reverse(own);  // CLI11 expects them in reverse order
  try {
    app.parse(own);
  } catch (const CLI::CallForHelp&) {
    Print(ShortHelp(*command, app, program));
    return kOk;
  } catch (const CLI::CallForAllHelp&) {
    Print(FullHelp(*command, app, program));
    return kOk;
  } catch (const CLI::RequiredError& error) {
    Words(program, *command, app);  // reports a misspelt option, which is the better explanation
    throw UsageError("{}; `{} {} --help` shows how", error.what(), program.name, command->Name());
  } catch (const CLI::ParseError& error) {
    throw UsageError("{}", more.WithOrigin(DescribeOptionError(app, error)));
  } catch (const InvalidArgument& error) {
    throw UsageError("{}", more.WithOrigin(error.what()));
  }
  const auto words = Words(program, *command, app);
  general.Apply();
  command->SetQuiet(general.quiet);
  try {
    return command->Run(words);
  } catch (const InvalidArgument& error) {
    throw UsageError("{}", more.WithOrigin(WithFlag(app, error.what())));
  } catch (const Error& error) {
    throw Error(more.WithOrigin(WithFlag(app, error.what())));
  }
}

int Dispatch(const Program& program, const std::vector<std::string>& arguments) {
  if (arguments.empty()) throw UsageError("no command; `{} --help` lists them", program.name);
  const std::string& first = arguments[0];
  if (first == "--version" || first == "-V") {
    Print(VersionText());
    return kOk;
  }
  if (first == "--help-markdown") {
    Print(OptionReference(program));
    return kOk;
  }
  if (first == "man") {
    Print(ManPage(program));
    return kOk;
  }
  if (first == "completion") {
    Print(CompletionScript(program, arguments.size() == 2 ? arguments[1] : ""));
    return kOk;
  }
  if (first == "--complete") {
    Print(Completions(program, {arguments.begin() + 1, arguments.end()}));
    return kOk;
  }
  if (first == "--help" || first == "-h" || first == "help") {
    if (arguments.size() == 1) {
      Print(ProgramHelp(program));
      return kOk;
    }
    std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
    rest.push_back("--help");
    return RunCommand(program, rest);
  }
  return RunCommand(program, arguments);
}

// A standard stream that the caller closed must not become the descriptor of a file that is opened
// later. The replacement refuses to be read or written, as the closed one would.
void OccupyStandardStreams() {
  for (int descriptor = 0; descriptor < 3; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) >= 0) continue;
    LC_CHECK(open("/dev/null", descriptor == 0 ? O_WRONLY : O_RDONLY) == descriptor);
  }
}

int Report(const std::string& message, int code) {
  // A progress bar would otherwise share the line.
  std::fputs(("error: " + Printable(message) + "\n").c_str(), stderr);
  return code;
}

}  // namespace

std::vector<std::unique_ptr<Command>> AllCommands() {
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(MakeGenerateCommand());
  commands.push_back(MakeChatCommand());
  commands.push_back(MakeServeCommand());
  commands.push_back(MakeTokenizeCommand());
  commands.push_back(MakeDetokenizeCommand());
  commands.push_back(MakeLogitsCommand());
  commands.push_back(MakeInspectCommand());
  commands.push_back(MakeBenchCommand());
  commands.push_back(MakeProfileCommand());
  commands.push_back(MakeQuantizeCommand());
  commands.push_back(MakeEvalGenerateCommand());
  commands.push_back(MakeEvalRunCommand());
  commands.push_back(MakeEvalReportCommand());
  return commands;
}

int RunProgram(const std::vector<std::string>& arguments) { return RunProgram(arguments, {}); }

int RunProgram(const std::vector<std::string>& arguments, const Program& program) {
  try {
    OccupyStandardStreams();
    signal(SIGPIPE, SIG_IGN);  // failed writes report it instead
    InstallInterruptHandler();
    return Dispatch(program, arguments);
  } catch (const OutputClosed&) {
    return kOk;
  } catch (const InvalidArgument& error) {
    return Report(error.what(), kUsage);
  } catch (const std::bad_alloc&) {
    return Report("out of memory; --memory sets a budget that is checked before work starts",
                  kFailure);
  } catch (const std::exception& error) {
    return Report(error.what(), kFailure);
  }
}

}  // namespace litecache::cli
