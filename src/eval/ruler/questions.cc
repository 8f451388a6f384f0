#include "eval/ruler/questions.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"

namespace litecache::eval {
namespace {

using io::JsonFields;
using nlohmann::json;

// The items of a required list.
std::vector<JsonFields> Objects(const JsonFields& fields, std::string_view key) {
  const json* value = fields.Find(key);
  if (value == nullptr || !value->is_array()) fields.Fail(key, "must be a list of objects");
  std::vector<JsonFields> objects;
  for (size_t i = 0; i < value->size(); ++i) {
    objects.emplace_back((*value)[i], fields.name(), fmt::format("{}[{}].", fields.Path(key), i));
  }
  return objects;
}

// Numbers documents by their text once all of them are known.
class DocumentNumbers {
 public:
  void Add(const std::string& document) { numbers_.try_emplace(document, 0); }

  // Sorted by code points, as RULER sorts them.
  std::vector<std::string> Number() {
    std::vector<std::string> sorted;
    sorted.reserve(numbers_.size());
    for (const auto& [document, number] : numbers_) sorted.push_back(document);
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i < sorted.size(); ++i) numbers_[sorted[i]] = static_cast<int64_t>(i);
    return sorted;
  }

  int64_t Of(const std::string& document) const { return numbers_.at(document); }

 private:
  std::unordered_map<std::string, int64_t> numbers_;
};

void AddDistinct(int64_t number, std::vector<int64_t>& numbers) {
  if (std::find(numbers.begin(), numbers.end(), number) == numbers.end()) numbers.push_back(number);
}

void CheckNotEmpty(const QuestionSet& set, const std::string& name) {
  if (set.questions.empty()) throw FileError("{}: holds no question with an answer", name);
}

// A paragraph of HotpotQA: its title and its sentences.
struct Paragraph {
  std::string title;
  std::string text;  // title and sentences, as a document
};

std::vector<Paragraph> Context(const JsonFields& fields) {
  constexpr const char* kForm = "must be a list of [title, [sentence, ...]]";
  const json* value = fields.Find("context");
  if (value == nullptr || !value->is_array() || value->empty()) fields.Fail("context", kForm);
  std::vector<Paragraph> paragraphs;
  for (const json& item : *value) {
    if (!item.is_array() || item.size() != 2 || !item[0].is_string() || !item[1].is_array()) {
      fields.Fail("context", kForm);
    }
    Paragraph paragraph{item[0].get<std::string>(), item[0].get<std::string>() + "\n"};
    for (const json& sentence : item[1]) {
      if (!sentence.is_string()) fields.Fail("context", kForm);
      paragraph.text += sentence.get_ref<const std::string&>();
    }
    paragraphs.push_back(std::move(paragraph));
  }
  return paragraphs;
}

// The titles of the paragraphs with the answer; the field may be absent.
std::vector<std::string> EvidenceTitles(const JsonFields& fields) {
  const json* value = fields.Find("supporting_facts");
  if (value == nullptr) return {};
  std::vector<std::string> titles;
  if (!value->is_array()) fields.Fail("supporting_facts", "must be a list of [title, sentence]");
  for (const json& item : *value) {
    if (!item.is_array() || item.empty() || !item[0].is_string()) {
      fields.Fail("supporting_facts", "must be a list of [title, sentence]");
    }
    titles.push_back(item[0].get<std::string>());
  }
  return titles;
}

}  // namespace

QuestionSet ParseSquad(std::string_view text, const std::string& name) {
  const json root = io::ParseJson(text, name);
  const std::vector<JsonFields> articles = Objects(JsonFields(root, name), "data");
  DocumentNumbers numbers;
  for (const JsonFields& article : articles) {
    for (const JsonFields& paragraph : Objects(article, "paragraphs")) {
      numbers.Add(paragraph.RequiredString("context"));
    }
  }
  QuestionSet set;
  set.documents = numbers.Number();
  for (const JsonFields& article : articles) {
    const std::vector<JsonFields> paragraphs = Objects(article, "paragraphs");
    std::vector<int64_t> of_article;
    for (const JsonFields& paragraph : paragraphs) {
      AddDistinct(numbers.Of(paragraph.RequiredString("context")), of_article);
    }
    for (const JsonFields& paragraph : paragraphs) {
      const int64_t own = numbers.Of(paragraph.RequiredString("context"));
      for (const JsonFields& fields : Objects(paragraph, "qas")) {
        if (fields.Bool("is_impossible").value_or(false)) continue;
        Question question;
        question.text = fields.RequiredString("question");
        for (const JsonFields& answer : Objects(fields, "answers")) {
          question.answers.push_back(answer.RequiredString("text"));
        }
        if (question.answers.empty()) fields.Fail("answers", "must hold an answer at least");
        question.documents = {own};
        question.evidence = {own};
        std::copy_if(of_article.begin(), of_article.end(), std::back_inserter(question.related),
                     [own](int64_t number) { return number != own; });
        set.questions.push_back(std::move(question));
      }
    }
  }
  CheckNotEmpty(set, name);
  return set;
}

QuestionSet ParseHotpotQa(std::string_view text, const std::string& name) {
  const json root = io::ParseJson(text, name);
  if (!root.is_array()) throw FileError("{}: must hold a JSON list of questions", name);
  std::vector<JsonFields> items;
  DocumentNumbers numbers;
  for (size_t i = 0; i < root.size(); ++i) {
    items.emplace_back(root[i], name, fmt::format("[{}].", i));
    for (const Paragraph& paragraph : Context(items.back())) numbers.Add(paragraph.text);
  }
  QuestionSet set;
  set.documents = numbers.Number();
  for (const JsonFields& fields : items) {
    Question question;
    question.text = fields.RequiredString("question");
    question.answers = {fields.RequiredString("answer")};
    const std::vector<std::string> titles = EvidenceTitles(fields);
    for (const Paragraph& paragraph : Context(fields)) {
      const int64_t number = numbers.Of(paragraph.text);
      AddDistinct(number, question.documents);
      if (std::find(titles.begin(), titles.end(), paragraph.title) != titles.end()) {
        AddDistinct(number, question.evidence);
      }
    }
    set.questions.push_back(std::move(question));
  }
  CheckNotEmpty(set, name);
  return set;
}

std::shared_ptr<const QuestionSet> LoadQuestions(std::string_view task,
                                                 const std::string& directory) {
  struct Source {
    std::string_view title;
    const char* file;   // the published name
    const char* other;  // the name used by RULER's download script
    std::string_view url;
    QuestionSet (*parse)(std::string_view, const std::string&);
  };
  const Source source =
      task == "qa_1"
          ? Source{"SQuAD", "dev-v2.0.json", "squad.json",
                   "https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json", ParseSquad}
          : Source{"HotpotQA", "hotpot_dev_distractor_v1.json", "hotpotqa.json",
                   "http://curtis.ml.cmu.edu/datasets/hotpot/hotpot_dev_distractor_v1.json",
                   ParseHotpotQa};
  if (directory.empty()) {
    throw FileError(
        "{}: needs the questions of {}: get {} and name the directory it is in with --qa-data (or "
        "LITECACHE_QA_DATA)",
        task, source.title, source.url);
  }
  for (const char* file : {source.file, source.other}) {
    const std::filesystem::path path = std::filesystem::path(directory) / file;
    std::error_code error;
    if (!std::filesystem::exists(path, error)) continue;
    return std::make_shared<const QuestionSet>(source.parse(io::ReadTextFile(path), path.string()));
  }
  throw FileError("{}: not found; {} needs the questions of {}: get {} and put it there",
                  (std::filesystem::path(directory) / source.file).string(), task, source.title,
                  source.url);
}

}  // namespace litecache::eval
