// The program: finds the command, parses its options, turns exceptions into messages and exit
// codes.
#pragma once

#include <string>
#include <vector>

namespace litecache::cli {

struct Program;  // cli/command.h

// Runs litecache, or another program. `arguments` without the program's name. Never throws.
int RunProgram(const std::vector<std::string>& arguments);
int RunProgram(const std::vector<std::string>& arguments, const Program& program);

}  // namespace litecache::cli
