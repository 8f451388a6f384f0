// Completion of command lines in shells.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace litecache::cli {

// The script that teaches a shell, "bash", "zsh" or "fish", to ask the program. Throws UsageError
// for another one.
std::string CompletionScript(const Program& program, const std::string& shell);

// What the last of `words` may become, the program's name not among them: a line each, with its
// meaning behind a tab. Empty where it is a file or anything else.
std::string Completions(const Program& program, const std::vector<std::string>& words);

}  // namespace litecache::cli
