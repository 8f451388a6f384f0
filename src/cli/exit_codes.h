// The exit codes of the program.
#pragma once

namespace litecache::cli {

inline constexpr int kOk = 0;
inline constexpr int kFailure = 1;        // an error of a file, of memory or of the model
inline constexpr int kUsage = 2;          // an invalid command line
inline constexpr int kCutShort = 3;       // serve: requests were cancelled at shutdown
inline constexpr int kInterrupted = 130;  // Ctrl-C, as shells report it
inline constexpr int kTerminated = 143;   // likewise SIGTERM, where it is handled

}  // namespace litecache::cli
