// litecache-lab: litecache plus the policies that it is compared with, and the experiments.
#include <utility>

#include "cli/app.h"
#include "lab/cli/commands.h"
#include "lab/register_policies.h"

namespace litecache::lab {
namespace {

std::vector<std::unique_ptr<cli::Command>> Commands() {
  auto commands = cli::AllCommands();
  for (auto& command : commands) {
    if (command->Name() == "bench") command = MakeBenchCommand();
  }
  commands.push_back(MakePapersCommand());
  commands.push_back(MakeRecordCommand());
  commands.push_back(MakeRecordBlocksCommand());
  return commands;
}

}  // namespace
}  // namespace litecache::lab

int main(int argc, char** argv) {
  litecache::lab::RegisterPolicies();
  return litecache::cli::RunProgram(
      {argv + 1, argv + argc},
      {.name = "litecache-lab",
       .summary =
           "LiteCache's laboratory: litecache with the policies that it is compared with, and "
           "the papers' experiments.",
       .commands = litecache::lab::Commands});
}
