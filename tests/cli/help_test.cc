#include "cli/help.h"

#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

#include "cli/help_entries.h"
#include "cli/options.h"
#include "cli/reference.h"
#include "source_directory.h"

namespace litecache::cli {
namespace {

TEST(Wrap, BreaksAtSpaces) {
  EXPECT_EQ(Wrap("aa bb cc", 0, 5), "aa bb\ncc");
  EXPECT_EQ(Wrap("aa bb cc", 2, 5), "aa\n  bb\n  cc");
  EXPECT_EQ(Wrap("averylongword b", 0, 5), "averylongword\nb");
  EXPECT_EQ(Wrap("", 3, 5), "");
}

// A command with its complete command line.
struct Declared {
  std::unique_ptr<Command> command;
  CLI::App app;
  GeneralOptions general;

  explicit Declared(std::unique_ptr<Command> made) : command(std::move(made)) {
    DeclareAll(*command, general, app);
  }
};

std::vector<std::unique_ptr<Declared>> AllDeclared() {
  std::vector<std::unique_ptr<Declared>> all;
  for (auto& command : AllCommands()) all.push_back(std::make_unique<Declared>(std::move(command)));
  return all;
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(Help, LinesFitAnEightyToHundredColumnTerminal) {
  for (const auto& declared : AllDeclared()) {
    const Command& command = *declared->command;
    for (const std::string& help :
         {ShortHelp(command, declared->app), FullHelp(command, declared->app)}) {
      for (const std::string& line : Lines(help)) {
        EXPECT_LE(line.size(), 110u) << command.Name() << ": " << line;
      }
    }
  }
}
TEST(Help, TheShortOneFitsAScreenAndHasExamples) {
  for (const auto& declared : AllDeclared()) {
    const Command& command = *declared->command;
    SCOPED_TRACE(command.Name());
    const std::string help = ShortHelp(command, declared->app);
    EXPECT_LE(Lines(help).size(), 40u) << help;
    EXPECT_THAT(help, ::testing::HasSubstr("Usage: litecache " + command.Name()));
    EXPECT_THAT(help, ::testing::HasSubstr("--help-all"));
    ASSERT_FALSE(command.Examples().empty());
    EXPECT_THAT(help, ::testing::HasSubstr("  " + command.Examples().front() + "\n"));
    for (const std::string& flag : command.CommonOptions()) {
      EXPECT_NE(declared->app.get_option_no_throw(flag), nullptr) << flag;
      EXPECT_THAT(help, ::testing::HasSubstr(flag));
    }
  }
}

TEST(Help, TheFullOneHasEveryOption) {
  for (const auto& declared : AllDeclared()) {
    const std::string help = FullHelp(*declared->command, declared->app);
    for (const CLI::Option* option : declared->app.get_options()) {
      EXPECT_THAT(help, ::testing::HasSubstr("--" + option->get_lnames().front()));
    }
  }
}

// The reference lists it once.
TEST(Help, AnOptionUnderOneHeadingMeansTheSameInEveryCommand) {
  std::map<std::string, Entry> known;
  for (const auto& declared : AllDeclared()) {
    for (const Entry& entry : Entries(declared->app)) {
      if (entry.group == kOwnGroup) continue;
      const auto [before, is_new] = known.emplace(entry.group + entry.flag, entry);
      if (is_new) continue;
      EXPECT_EQ(before->second.help, entry.help) << declared->command->Name() << " " << entry.flag;
      EXPECT_EQ(before->second.name, entry.name);
    }
  }
}

TEST(Help, EveryOptionSaysWhatItDoes) {
  for (const auto& declared : AllDeclared()) {
    std::set<std::string> names;
    for (const CLI::Option* option : declared->app.get_options()) {
      EXPECT_GT(option->get_description().size(), 3u) << declared->command->Name();
      for (const auto& name : option->get_lnames()) {
        EXPECT_TRUE(names.insert(name).second) << declared->command->Name() << " --" << name;
      }
    }
  }
}

// docs/reference/cli.md ends with the tables of `litecache --help-markdown`.
TEST(Help, TheDocumentHasTheOptionTables) {
  std::ifstream file(SourceDirectory() / "docs/reference/cli.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_TRUE(text.ends_with(OptionReference()))
      << "docs/reference/cli.md: replace what follows \"## Options\" by the output of `litecache "
         "--help-markdown`";
}

}  // namespace
}  // namespace litecache::cli
