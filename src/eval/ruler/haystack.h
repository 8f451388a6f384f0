// Text that needles are hidden in: windows of whole words, cut into pieces between which needles
// may stand.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace litecache::eval {

class Haystack {
 public:
  // kSentences: white space becomes single spaces, pieces are sentences, joined by spaces (RULER's
  // essays). kLines: the text stays as it is, pieces are its lines (source code).
  enum class Pieces { kSentences, kLines };

  // UTF-8 text. Throws InvalidArgument when it holds no word or is not UTF-8, naming `name`.
  static std::shared_ptr<const Haystack> FromText(std::string text, Pieces pieces,
                                                  std::string_view name = "haystack");

  // A file (.json: its key "text"; .json, .txt and .md are read as sentences, others as lines), or
  // a directory, whose text files are joined in the order of their paths and read as lines.
  // `pieces` is "auto", "sentences" or "lines". Throws FileError or InvalidArgument.
  static std::shared_ptr<const Haystack> FromPath(const std::string& path,
                                                  std::string_view pieces = "auto");

  // The built-in Python sources.
  static std::shared_ptr<const Haystack> Default();

  int64_t words() const { return static_cast<int64_t>(word_end_.size()); }
  int64_t bytes() const { return static_cast<int64_t>(text_.size()); }

  // Pieces of the `words` words from piece `first_piece` on (the last piece may be cut short); past
  // the end it starts over. Views into this object.
  std::vector<std::string_view> Window(int64_t words, int64_t first_piece = 0) const;
  int64_t pieces() const { return static_cast<int64_t>(pieces_.size()); }
  // What stands between two pieces.
  char joint() const { return joint_; }

 private:
  struct Piece {
    size_t begin;         // byte offset
    uint32_t first_word;  // its number
  };

  std::string text_;
  std::vector<uint32_t> word_end_;  // byte offsets, ascending
  std::vector<Piece> pieces_;
  char joint_ = ' ';
};

}  // namespace litecache::eval
