// The commands that litecache-lab adds to the product's; one function per file.
#pragma once

#include <memory>

#include "cli/command.h"

namespace litecache::lab {

// Replaces the product's `bench`; adds reuse that is drawn at random or taken from a trace, and a
// recorded prompt's blocks.
std::unique_ptr<cli::Command> MakeBenchCommand();
std::unique_ptr<cli::Command> MakePapersCommand();
std::unique_ptr<cli::Command> MakeRecordCommand();
std::unique_ptr<cli::Command> MakeRecordBlocksCommand();

}  // namespace litecache::lab
