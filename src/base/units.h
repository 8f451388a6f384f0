// Sizes and counts as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace litecache {

// "48GiB", "512MiB", "1.5GB", "4096" (bytes) -> bytes. KiB/MiB/GiB/TiB are powers of 1024,
// kB/KB/MB/GB/TB of 1000; K/M/G/T alone mean the powers of 1024. Throws InvalidArgument naming
// `what` and the text.
uint64_t ParseBytes(std::string_view text, std::string_view what);

// "16k" -> 16384, "1m" -> 1048576, "12000" -> 12000. Throws InvalidArgument naming `what` and the
// text.
int64_t ParseTokens(std::string_view text, std::string_view what);

// "10%" -> 0.1 of `whole`, "4096" or "4k" -> 4096. Throws InvalidArgument naming `what` and the
// text.
int64_t ParseShareOrTokens(std::string_view text, int64_t whole, std::string_view what);

// 1536 -> "1.5 KiB". Three significant digits.
std::string FormatBytes(uint64_t bytes);

// 0.00153 -> "1.53 ms"; from nanoseconds to minutes.
std::string FormatSeconds(double seconds);

}  // namespace litecache
