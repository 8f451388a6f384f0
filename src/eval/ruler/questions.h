// Questions about paragraphs, from the files of SQuAD and HotpotQA, for RULER's two
// question-answering tasks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace litecache::eval {

struct Question {
  std::string text;
  std::vector<std::string> answers;  // at least one; any of them is correct
  // Indices of documents: those always in the prompt; those of the same article, which are added
  // first; and those that contain the answer, if the file has this information.
  std::vector<int64_t> documents;
  std::vector<int64_t> related;
  std::vector<int64_t> evidence;
};

struct QuestionSet {
  std::vector<std::string> documents;  // sorted, distinct
  std::vector<Question> questions;     // in the order of the file
};

// SQuAD 2.0 (or 1.1): every answerable question, with its paragraph and the others of its article.
// Throws a FileError that names the field; `name` is the path in messages.
QuestionSet ParseSquad(std::string_view json, const std::string& name);

// HotpotQA in its distractor setting: every question with its ten titled paragraphs.
QuestionSet ParseHotpotQa(std::string_view json, const std::string& name);

// The questions of "qa_1" (dev-v2.0.json or squad.json) or "qa_2" (hotpot_dev_distractor_v1.json or
// hotpotqa.json) in a directory; an empty path means that none was given. Throws a FileError that
// says where to get the file and where to put it.
std::shared_ptr<const QuestionSet> LoadQuestions(std::string_view task,
                                                 const std::string& directory);

}  // namespace litecache::eval
