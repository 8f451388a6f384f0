// The program litecache-soak, and litecache-lab-soak with the policies of lab/.
#pragma once

namespace litecache {

// Parses the command line and runs; returns the exit code.
int RunSoak(int argc, char** argv);

}  // namespace litecache
