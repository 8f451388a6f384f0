// Text in which needles are hidden: windows of whole words, split into pieces between which needles
// may be inserted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace litecache::eval {

class Haystack {
 public:
  // kSentences: white space becomes single spaces; pieces are sentences, joined by spaces (RULER's
  // essays). kLines: the text is unchanged; pieces are its lines (source code).
  enum class Pieces { kSentences, kLines };

  // From UTF-8 text. Throws an InvalidArgument that gives `name` if the text has no word or is not
  // UTF-8.
  static std::shared_ptr<const Haystack> FromText(std::string text, Pieces pieces,
                                                  std::string_view name = "haystack");

  // From a file (.json: its key "text"; .json, .txt and .md are read as sentences, others as
  // lines), or a directory, whose text files are joined in the order of their paths and read as
  // lines. `pieces` is "auto", "sentences" or "lines". Throws FileError or InvalidArgument.
  static std::shared_ptr<const Haystack> FromPath(const std::string& path,
                                                  std::string_view pieces = "auto");

  // The built-in Python sources.
  static std::shared_ptr<const Haystack> Default();

  int64_t words() const { return static_cast<int64_t>(word_end_.size()); }
  int64_t bytes() const { return static_cast<int64_t>(text_.size()); }

  // The character between two pieces.
  // the end it starts over. Views into this object.
  std::vector<std::string_view> Window(int64_t words, int64_t first_piece = 0) const;
  int64_t pieces() const { return static_cast<int64_t>(pieces_.size()); }
  // What stands between two pieces.
  char joint() const { return joint_; }

 private:
  struct Piece {
    size_t begin;         // byte offset
    uint32_t first_word;  // index of its first word
  };

  std::string text_;
  std::vector<uint32_t> word_end_;  // byte offsets, ascending
  std::vector<Piece> pieces_;
  char joint_ = ' ';
};

}  // namespace litecache::eval
