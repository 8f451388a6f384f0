// "Did you mean ...?"
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace litecache::cli {

// Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`.
int EditDistance(std::string_view a, std::string_view b);

// The candidate nearest to `word`, or "" if none is close enough to be a typing error.
std::string Nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace litecache::cli
