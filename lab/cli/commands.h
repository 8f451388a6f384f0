// What litecache-lab has beside the product's commands; one function a file.
#pragma once

#include <memory>

#include "cli/command.h"

namespace litecache::lab {

// `bench` with reuse that is drawn or taken from a trace, in the place of the product's.
std::unique_ptr<cli::Command> MakeBenchCommand();
std::unique_ptr<cli::Command> MakePapersCommand();
std::unique_ptr<cli::Command> MakeRecordCommand();

}  // namespace litecache::lab
