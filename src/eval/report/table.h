// Tables of results: built once, written as text, Markdown or HTML.
#pragma once

#include <string>
#include <vector>

namespace litecache::eval {

struct Table {
  std::string title;
  std::string note;               // below the title; may be empty
  std::vector<std::string> head;  // the first column is a label, the others are figures
  std::vector<std::vector<std::string>> rows;
  size_t summary_rows = 0;  // number of last rows that summarize the others
};

// Aligned columns; if they do not fit `width` characters, blocks of columns below each other, each
// with the labels.
std::string ToText(const Table& table, size_t width);
std::string ToMarkdown(const Table& table);
std::string ToHtml(const Table& table);

}  // namespace litecache::eval
