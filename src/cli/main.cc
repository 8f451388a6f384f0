#include "cli/app.h"

int main(int argc, char** argv) { return litecache::cli::RunProgram({argv + 1, argv + argc}); }
