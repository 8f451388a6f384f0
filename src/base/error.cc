#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace litecache::internal {

void CheckFailed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "%s:%d: internal error: CHECK(%s) failed%s%s\n", file, line, condition,
               message.empty() ? "" : ": ", message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace litecache::internal
