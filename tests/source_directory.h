// The directory in which tests find fixtures and models.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace litecache {

// The checkout in which the tests were built; LC_SOURCE_DIR in the environment names another one,
// for test programs copied to another machine.
inline std::filesystem::path SourceDirectory() {
  const char* other = std::getenv("LC_SOURCE_DIR");
  return other != nullptr ? other : LC_SOURCE_DIR;
}

}  // namespace litecache
