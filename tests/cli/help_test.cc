#include "cli/help.h"

#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <set>

#include "source_directory.h"

namespace litecache::cli {
namespace {

TEST(Wrap, BreaksAtSpaces) {
  EXPECT_EQ(Wrap("aa bb cc", 0, 5), "aa bb\ncc");
  EXPECT_EQ(Wrap("aa bb cc", 2, 5), "aa\n  bb\n  cc");
  EXPECT_EQ(Wrap("averylongword b", 0, 5), "averylongword\nb");
  EXPECT_EQ(Wrap("", 3, 5), "");
}

TEST(Help, LinesFitAnEightyToHundredColumnTerminal) {
  for (const auto& command : AllCommands()) {
    CLI::App app;
    command->Declare(app);
    std::istringstream help(CommandHelp(*command, app));
    for (std::string line; std::getline(help, line);) {
      EXPECT_LE(line.size(), 110u) << command->Name() << ": " << line;
    }
  }
}

TEST(Help, EveryOptionSaysWhatItDoes) {
  for (const auto& command : AllCommands()) {
    CLI::App app;
    command->Declare(app);
    std::set<std::string> names;
    for (const CLI::Option* option : app.get_options()) {
      EXPECT_GT(option->get_description().size(), 3u) << command->Name();
      for (const auto& name : option->get_lnames()) {
        EXPECT_TRUE(names.insert(name).second) << command->Name() << " --" << name;
      }
    }
  }
}

// docs/reference/cli.md ends with the tables of `litecache --help-markdown`.
TEST(Help, TheDocumentHasTheOptionTables) {
  std::ifstream file(SourceDirectory() / "docs/reference/cli.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text, ::testing::HasSubstr(OptionTables()))
      << "docs/reference/cli.md: replace the option tables by those of `litecache --help-markdown`";
}

}  // namespace
}  // namespace litecache::cli
