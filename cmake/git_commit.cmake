# Writes the commit of the build into a C++ source if it has changed. Run at build time:
#   cmake -DGIT=... -DSOURCE=... -DOUTPUT=... -P git_commit.cmake
set(commit "")
if(GIT)
  execute_process(COMMAND ${GIT} -C ${SOURCE} describe --always --abbrev=9 --exclude=* --dirty=+
                  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
set(text
"// Made by cmake/git_commit.cmake.
#include \"cli/version.h\"

namespace litecache::cli {

std::string_view GitCommit() { return \"${commit}\"; }

}  // namespace litecache::cli
")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
