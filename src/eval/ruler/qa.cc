// Question answering: numbered documents, including those that a question is about.
#include <fmt/core.h>

#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "eval/ruler/questions.h"
#include "eval/ruler/tasks.h"

namespace litecache::eval {
namespace {

constexpr std::string_view kInstruction =
    "Answer the question based on the given documents. Only give me the answer and do not output "
    "any other words.";
constexpr std::string_view kQaAnswerPrefix = " Answer:";

enum : uint64_t { kQaDocumentStream, kQaOrderStream };

class QuestionBuilder : public TaskBuilder {
 public:
  QuestionBuilder(const TaskSpec& spec, std::shared_ptr<const QuestionSet> set)
      : spec_(spec), set_(std::move(set)) {}

  // A unit is a document.
  int64_t MinSize(const BuildRequest& request) const override {
    return static_cast<int64_t>(QuestionOf(request).documents.size());
  }

  Draft Build(const BuildRequest& request) const override {
    const Question& question = QuestionOf(request);
    std::vector<int64_t> chosen = Choose(question, request);
    Random order(DeriveSeed(request.seed, kQaOrderStream));
    order.Shuffle(chosen);
    Draft draft;
    draft.text = fmt::format("{}\n\nThe following are given documents.\n\n", kInstruction);
    const auto begin = static_cast<int64_t>(draft.text.size());
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (i > 0) draft.text += "\n\n";
      draft.text += fmt::format("Document {}:\n", i + 1);
      const auto at = static_cast<int64_t>(draft.text.size());
      draft.text += set_->documents[static_cast<size_t>(chosen[i])];
      if (std::find(question.evidence.begin(), question.evidence.end(), chosen[i]) !=
          question.evidence.end()) {
        draft.needles.push_back({at, static_cast<int64_t>(draft.text.size()), 0});
      }
    }
    const auto context = static_cast<double>(static_cast<int64_t>(draft.text.size()) - begin);
    for (Needle& needle : draft.needles) {
      needle.depth = static_cast<double>(needle.begin - begin) / context;
    }
    draft.text +=
        fmt::format("\n\n{}\n\nQuestion: {}{}", kInstruction, question.text, kQaAnswerPrefix);
    draft.answer_prefix = kQaAnswerPrefix;
    draft.outputs = question.answers;
    return draft;
  }

 private:
  // Sample i uses question i, as in RULER.
  const Question& QuestionOf(const BuildRequest& request) const {
    const auto questions = static_cast<int64_t>(set_->questions.size());
    if (request.index >= questions) {
      throw InvalidArgument("--count: {} has {} questions, sample {} was asked for", spec_.name,
                            questions, request.index);
    }
    return set_->questions[static_cast<size_t>(request.index)];
  }

  // The question's documents, then those of its article, then any others, in random order; each is
  // a prefix of the list for a larger size. When all are used up they repeat.
  std::vector<int64_t> Choose(const Question& question, const BuildRequest& request) const {
    const auto size = static_cast<size_t>(request.size);
    const auto total = static_cast<int64_t>(set_->documents.size());
    std::vector<int64_t> chosen = question.documents;
    Random random(DeriveSeed(request.seed, kQaDocumentStream));
    const auto related = static_cast<int64_t>(question.related.size());
    for (const int64_t i : random.Sample(related, related)) {
      if (chosen.size() >= size) return chosen;
      chosen.push_back(question.related[static_cast<size_t>(i)]);
    }
    const std::unordered_set<int64_t> taken(chosen.begin(), chosen.end());
    const int64_t drawn = std::min<int64_t>(request.size, total);
    for (const int64_t i : random.Sample(total, drawn)) {
      if (chosen.size() >= size) return chosen;
      if (taken.count(i) == 0) chosen.push_back(i);
    }
    const size_t distinct = chosen.size();
    while (chosen.size() < size) chosen.push_back(chosen[chosen.size() - distinct]);
    return chosen;
  }

  const TaskSpec& spec_;
  std::shared_ptr<const QuestionSet> set_;
};

}  // namespace

std::unique_ptr<TaskBuilder> MakeQuestionBuilder(const TaskSpec& spec, Split split,
                                                 std::shared_ptr<const QuestionSet> questions) {
  if (split != Split::kTest) {
    throw InvalidArgument("--split: {} has questions for the split test only", spec.name);
  }
  // Throws an error that names the missing files.
  if (questions == nullptr) LoadQuestions(spec.name, "");
  return std::make_unique<QuestionBuilder>(spec, std::move(questions));
}

}  // namespace litecache::eval
