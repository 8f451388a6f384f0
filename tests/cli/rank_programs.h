// For tests that run the program with --tensor-parallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/fixture_model.h"

namespace litecache::testing {

// Words of random letters, other ones in every run; the same text for the same size and salt.
std::string RandomText(size_t size, uint64_t salt = 7);

// Options of a small model in f32, where rounding decides no token.
std::vector<std::string> RankOptions(const FixtureModel& model, const std::string& policy,
                                     int ranks);
// `serve` with them, at any free port.
std::vector<std::string> ServeWords(const FixtureModel& model, const std::string& policy,
                                    int ranks);
// The port that a server's log names.
uint16_t PortOf(const std::string& log);

// The other ranks of a running program.
std::vector<int> ChildrenOf(int pid);

}  // namespace litecache::testing
