// What the program returns to its caller.
#pragma once

namespace litecache::cli {

inline constexpr int kOk = 0;
inline constexpr int kFailure = 1;        // a file, the memory or the model said no
inline constexpr int kUsage = 2;          // the command line cannot mean anything
inline constexpr int kCutShort = 3;       // serve: requests were cancelled at the end
inline constexpr int kInterrupted = 130;  // Ctrl-C, as shells report it

}  // namespace litecache::cli
