#include "lab/papers/page.h"

#include <fmt/format.h>

#include <cctype>

#include "base/error.h"
#include "io/file.h"

namespace litecache::bench::papers {
namespace {

std::string Row(const std::vector<std::string>& cells) {
  std::string text = "|";
  for (const std::string& cell : cells) {
    text += " ";
    for (const char c : cell) text += c == '|' ? std::string("\\|") : std::string(1, c);
    text += " |";
  }
  return text + "\n";
}

}  // namespace

Page::Page(std::filesystem::path path) : path_(std::move(path)) {}

void Page::Table(const std::vector<std::string>& head,
                 const std::vector<std::vector<std::string>>& rows) {
  text_ += Row(head) + "|";
  for (size_t i = 0; i < head.size(); ++i) text_ += i == 0 ? " --- |" : " ---: |";
  text_ += "\n";
  for (const auto& row : rows) text_ += Row(row);
  text_ += "\n";
}

void Page::Picture(const std::string& name, const std::string& title, const std::string& svg) {
  if (svg.empty()) return;
  const std::filesystem::path folder = path_.stem();
  std::error_code error;
  std::filesystem::create_directories(path_.parent_path() / folder, error);
  if (error) {
    throw FileError("{}: cannot be made: {}", (path_.parent_path() / folder).string(),
                    error.message());
  }
  std::string file;  // a shape may be a path
  for (const char c : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-';
    file += plain ? c : '-';
  }
  io::WriteFileAtomically(path_.parent_path() / folder / (file + ".svg"), svg);
  text_ += fmt::format("![{}]({}/{}.svg)\n\n", title, folder.string(), file);
}

void Page::Write() const { io::WriteFileAtomically(path_, text_); }

std::string Figure(std::optional<double> value) {
  if (!value) return "-";
  return *value >= 1000 ? fmt::format("{:.0f}", *value) : fmt::format("{:.3g}", *value);
}

std::string Percent(std::optional<double> share) {
  return share ? fmt::format("{:.1f}%", 100 * *share) : "-";
}

std::string Tokens(int64_t tokens) {
  return tokens % 1024 == 0 ? fmt::format("{}K", tokens / 1024) : std::to_string(tokens);
}

}  // namespace litecache::bench::papers
