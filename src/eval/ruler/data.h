// The data files compiled into the program, so that it needs no files at run time.
#pragma once

#include <string_view>

namespace litecache::eval::data {

// One word per line (data/words).
std::string_view Adjectives();
std::string_view Nouns();
std::string_view Verbs();
std::string_view English();
// Python modules (data/haystack).
std::string_view Haystack();

}  // namespace litecache::eval::data
