// Version and build information.
#pragma once

#include <string>
#include <string_view>

namespace litecache::cli {

// The commit of the build, "3a3bd7651"; "3a3bd7651+" if files differed from it; empty if unknown.
std::string_view GitCommit();

// Version, commit, compiler and backends, one fact per line.
std::string VersionText();

}  // namespace litecache::cli
