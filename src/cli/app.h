// The program: finds the command, parses its options, turns exceptions into messages and exit
// codes.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace litecache::cli {

// `arguments` without the program's name. Never throws.
int RunProgram(const std::vector<std::string>& arguments, const Program& program = {});

}  // namespace litecache::cli
