#include "eval/report/table.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/markup.h"

namespace litecache::eval {
namespace {

// Counts characters for alignment: names are ASCII, but signs such as the minus of differences are
// not.
size_t Width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string Spaces(size_t wanted, const std::string& text) {
  return std::string(wanted > Width(text) ? wanted - Width(text) : 0, ' ');
}

const std::string& Cell(const std::vector<std::string>& row, size_t column) {
  static const std::string kEmpty;
  return column < row.size() ? row[column] : kEmpty;
}

std::string EscapeMarkdown(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

}  // namespace

std::string ToText(const Table& table, size_t width) {
  std::vector<size_t> widths(table.head.size());
  for (size_t c = 0; c < widths.size(); ++c) {
    widths[c] = Width(table.head[c]);
    for (const auto& row : table.rows) widths[c] = std::max(widths[c], Width(Cell(row, c)));
  }
  std::string text = table.title + "\n";
  if (!table.note.empty()) text += table.note + "\n";
  for (size_t begin = 1; begin < std::max<size_t>(widths.size(), 2);) {
    size_t end = begin;
    size_t used = widths.empty() ? 0 : widths[0];
    while (end < widths.size() && (end == begin || used + 2 + widths[end] <= width)) {
      used += 2 + widths[end++];
    }
    const auto line = [&](const std::vector<std::string>& row) {
      std::string out = Cell(row, 0) + Spaces(widths[0], Cell(row, 0));
      for (size_t c = begin; c < end; ++c) {
        out += "  " + Spaces(widths[c], Cell(row, c)) + Cell(row, c);
      }
      text += out + "\n";
    };
    text += "\n";
    line(table.head);
    for (size_t r = 0; r < table.rows.size(); ++r) {
      if (table.summary_rows > 0 && r + table.summary_rows == table.rows.size()) {
        text += std::string(used, '-') + "\n";
      }
      line(table.rows[r]);
    }
    begin = std::max(end, begin + 1);
  }
  return text;
}

std::string ToMarkdown(const Table& table) {
  std::string text = "### " + table.title + "\n\n";
  if (!table.note.empty()) text += table.note + "\n\n";
  const auto line = [&](const std::vector<std::string>& row, bool bold_label) {
    text += "|";
    for (size_t c = 0; c < table.head.size(); ++c) {
      const std::string cell = EscapeMarkdown(Cell(row, c));
      text += c == 0 && bold_label ? " **" + cell + "** |" : " " + cell + " |";
    }
    text += "\n";
  };
  line(table.head, false);
  text += "|";
  for (size_t c = 0; c < table.head.size(); ++c) text += c == 0 ? " --- |" : " ---: |";
  text += "\n";
  for (size_t r = 0; r < table.rows.size(); ++r) {
    line(table.rows[r], r + table.summary_rows >= table.rows.size());
  }
  return text;
}

std::string ToHtml(const Table& table) {
  std::string text = "<h2>" + EscapeMarkup(table.title) + "</h2>\n";
  if (!table.note.empty()) text += "<p class=\"note\">" + EscapeMarkup(table.note) + "</p>\n";
  text += "<div class=\"scroll\"><table>\n<thead><tr>";
  for (const std::string& cell : table.head) text += "<th>" + EscapeMarkup(cell) + "</th>";
  text += "</tr></thead>\n<tbody>\n";
  for (size_t r = 0; r < table.rows.size(); ++r) {
    const bool summary = r + table.summary_rows >= table.rows.size();
    text += summary ? "<tr class=\"summary\">" : "<tr>";
    for (size_t c = 0; c < table.head.size(); ++c) {
      const char* tag = c == 0 ? "th" : "td";
      text += fmt::format("<{0}>{1}</{0}>", tag, EscapeMarkup(Cell(table.rows[r], c)));
    }
    text += "</tr>\n";
  }
  return text + "</tbody></table></div>\n";
}

}  // namespace litecache::eval
