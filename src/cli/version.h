// What this build is.
#pragma once

#include <string>

namespace litecache::cli {

// Version, compiler and backends, one fact a line.
std::string VersionText();

}  // namespace litecache::cli
