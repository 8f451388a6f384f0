// A command of the program: its options and its implementation.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"

namespace litecache::cli {

// An invalid command line: exit code 2.
class UsageError : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

class Command {
 public:
  virtual ~Command() = default;

  // "generate", or "eval generate" for a command of a group.
  virtual std::string Name() const = 0;
  // One line for the list of commands.
  virtual std::string Summary() const = 0;
  // Notes that --help-all prints below the options: input and output formats.
  virtual std::string Notes() const { return ""; }
  // Example command lines, shown below the options by --help and --help-all.
  virtual std::vector<std::string> Examples() const { return {}; }
  // Flags that --help shows besides --model and the common ones of the option tables; empty: the
  // command's own flags.
  virtual std::vector<std::string> CommonOptions() const { return {}; }
  // Name of the positional arguments in the usage line; empty if the command takes none.
  virtual std::string Words() const { return ""; }
  // Adds the command's options; they are stored in members before Run().
  virtual void Declare(CLI::App& app) = 0;
  // --quiet: no summary. Called before Run().
  void SetQuiet(bool quiet) { quiet_ = quiet; }
  // Returns the exit code; throws on errors. `words` are the positional arguments. They bypass
  // CLI11, which would split a prompt such as "[a, b]" at its commas.
  virtual int Run(const std::vector<std::string>& words) = 0;

 protected:
  bool quiet_ = false;
};

// One factory function per file in commands/.
std::unique_ptr<Command> MakeGenerateCommand();
std::unique_ptr<Command> MakeChatCommand();
std::unique_ptr<Command> MakeServeCommand();
std::unique_ptr<Command> MakeTokenizeCommand();
std::unique_ptr<Command> MakeDetokenizeCommand();
std::unique_ptr<Command> MakeLogitsCommand();
std::unique_ptr<Command> MakeInspectCommand();
std::unique_ptr<Command> MakeBenchCommand();
std::unique_ptr<Command> MakeProfileCommand();
std::unique_ptr<Command> MakeQuantizeCommand();
std::unique_ptr<Command> MakeEvalGenerateCommand();
std::unique_ptr<Command> MakeEvalRunCommand();
std::unique_ptr<Command> MakeEvalReportCommand();

// litecache's commands, in the order of the help.
std::vector<std::unique_ptr<Command>> AllCommands();

// A program: a name and its commands.
struct Program {
  std::string name = "litecache";  // in help texts and messages
  std::string summary = "LiteCache runs language models with long contexts.";
  std::vector<std::unique_ptr<Command>> (*commands)() = AllCommands;
};

}  // namespace litecache::cli
