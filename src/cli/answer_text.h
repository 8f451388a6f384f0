// What of an answer is printed.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/answer_parser.h"

namespace litecache::cli {

// Takes the text of an answer as it arrives. In harmony, the format of gpt-oss, the answer is what
// the model has not marked as its thoughts; otherwise all of the text.
class AnswerText {
 public:
  // dim: thoughts are printed dimmed, as on a terminal; otherwise they are left out.
  AnswerText(bool harmony, bool dim);

  // What to print for the next piece, and at the end.
  std::string Add(const std::string& piece);
  std::string Finish();
  // The answer so far.
  const std::string& answer() const { return answer_; }

 private:
  std::string Print(const std::vector<server::ToolEvent>& events);

  std::unique_ptr<server::AnswerParts> parts_;  // null: the text is the answer
  const bool dim_;
  bool thought_ = false;  // has been printed last
  std::string answer_;
};

}  // namespace litecache::cli
