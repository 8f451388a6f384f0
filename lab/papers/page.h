// The page that a run writes: Markdown, with its pictures in files beside it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace litecache::bench::papers {

class Page {
 public:
  // path: the page's file; pictures go into a directory of its name without ".md" beside it.
  explicit Page(std::filesystem::path path);

  void Title(const std::string& text) { text_ += "# " + text + "\n\n"; }
  void Heading(const std::string& text) { text_ += "## " + text + "\n\n"; }
  void Paragraph(const std::string& text) { text_ += text + "\n\n"; }
  // The first cell of a row is a label, the others are figures.
  void Table(const std::vector<std::string>& head,
             const std::vector<std::vector<std::string>>& rows);
  // svg: nothing is shown where it is empty. Throws FileError.
  void Picture(const std::string& name, const std::string& title, const std::string& svg);

  // Throws FileError.
  void Write() const;

 private:
  std::filesystem::path path_;
  std::string text_;
};

// Figures as tables show them: three significant digits, "-" where there is none.
std::string Figure(std::optional<double> value);
std::string Percent(std::optional<double> share);
// 8192 -> "8K", 1500 -> "1500".
std::string Tokens(int64_t tokens);

}  // namespace litecache::bench::papers
