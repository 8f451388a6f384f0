// What this build is.
#pragma once

#include <string>
#include <string_view>

namespace litecache::cli {

// The commit it was built from, "3a3bd7651"; "3a3bd7651+" where files differed from it; empty:
// unknown.
std::string_view GitCommit();

// Version, commit, compiler and backends, one fact a line.
std::string VersionText();

}  // namespace litecache::cli
