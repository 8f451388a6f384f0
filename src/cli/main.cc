#include "base/stack.h"
#include "cli/app.h"

int main(int argc, char** argv) {
  litecache::EnsureStack();
  return litecache::cli::RunProgram({argv + 1, argv + argc});
}
