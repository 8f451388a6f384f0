// Where tests find fixtures and models.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace litecache {

// The checkout the tests were built in; LC_SOURCE_DIR in the environment names another one, for
// test programs that were carried to another machine.
inline std::filesystem::path SourceDirectory() {
  const char* other = std::getenv("LC_SOURCE_DIR");
  return other != nullptr ? other : LC_SOURCE_DIR;
}

}  // namespace litecache
