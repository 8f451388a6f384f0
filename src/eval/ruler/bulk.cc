#include "eval/ruler/bulk.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "eval/ruler/fit.h"

namespace litecache::eval {
namespace {

// Share of a document that needles, questions and answers may fill; the rest is haystack.
constexpr double kQuestionShare = 0.6;

enum : uint64_t { kShapeStream, kTextStream };

}  // namespace

std::vector<std::pair<std::string, double>> ParseTaskWeights(std::string_view text) {
  std::vector<std::pair<std::string, double>> tasks;
  if (text == "all") {
    for (const TaskSpec& spec : TaskSpecs()) {
      if (!NeedsQuestions(spec)) tasks.emplace_back(spec.name, 1.0);
    }
    return tasks;
  }
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    const size_t colon = std::min(item.find(':'), item.size());
    double weight = 1;
    if (colon < item.size()) {
      const std::string_view number = item.substr(colon + 1);
      const auto parsed = std::from_chars(number.data(), number.data() + number.size(), weight);
      if (parsed.ec != std::errc() || parsed.ptr != number.data() + number.size() ||
          !std::isfinite(weight) || weight <= 0) {
        throw InvalidArgument("--tasks: the weight '{}' in '{}' is no positive number", number,
                              item);
      }
    }
    tasks.emplace_back(FindTask(item.substr(0, colon)).name, weight);
  }
  if (tasks.empty()) throw InvalidArgument("--tasks: the list is empty");
  return tasks;
}

BulkGenerator::BulkGenerator(BulkOptions options, TokenCounter counter)
    : options_(std::move(options)), counter_(std::move(counter)) {
  if (options_.min_length < 1 || options_.max_length < options_.min_length) {
    throw InvalidArgument("--length: {}:{} is no range of lengths", options_.min_length,
                          options_.max_length);
  }
  if (options_.max_questions < 1) {
    throw InvalidArgument("--questions: {} is less than 1", options_.max_questions);
  }
  if (options_.tasks.empty()) throw InvalidArgument("--tasks: the list is empty");
  double total = 0;
  for (const auto& [name, weight] : options_.tasks) {
    if (NeedsQuestions(FindTask(name))) {
      throw InvalidArgument(
          "--tasks: {} can only be used for test samples, not for training documents", name);
    }
    Task task{&FindTask(name), total += weight, nullptr, {}, 0};
    task.builder = MakeBuilder(*task.spec, options_.split, {options_.haystack, nullptr}, counter_);
    BuildRequest request;
    request.seed = DeriveSeed(HashText(name), options_.seed);
    request.length = options_.max_length;
    request.training = true;
    task.guess = GuessSizes(*task.builder, request, counter_);
    request.questions = 2;
    task.tokens_per_question =
        GuessSizes(*task.builder, request, counter_).tokens_at_zero - task.guess.tokens_at_zero;
    request.questions = 1;
    request.length = options_.min_length;
    request.size = task.builder->MinSize(request);
    const int64_t least = counter_(task.builder->Build(request).text);
    if (least > options_.min_length) {
      throw InvalidArgument("--length: {} needs at least {} tokens, the range begins at {}", name,
                            least, options_.min_length);
    }
    tasks_.push_back(std::move(task));
  }
}

TrainingDocument BulkGenerator::Make(int64_t index) const {
  const uint64_t seed =
      DeriveSeed(DeriveSeed(HashText(SplitName(options_.split)) ^ HashText("bulk"), options_.seed),
                 static_cast<uint64_t>(index));
  Random shape(DeriveSeed(seed, kShapeStream));
  const double pick = shape.Unit() * tasks_.back().cumulative_weight;
  const Task& task = *std::find_if(tasks_.begin(), tasks_.end(),
                                   [&](const Task& t) { return pick < t.cumulative_weight; });
  const double low = std::log(static_cast<double>(options_.min_length));
  const double high = std::log(static_cast<double>(options_.max_length));
  BuildRequest request;
  request.seed = DeriveSeed(seed, kTextStream);
  request.training = true;
  request.length = std::llround(std::exp(low + shape.Unit() * (high - low)));
  int64_t questions = options_.max_questions;
  if (task.tokens_per_question > 0) {
    const double room =
        kQuestionShare * static_cast<double>(request.length) - task.guess.tokens_at_zero;
    questions = std::clamp<int64_t>(1 + static_cast<int64_t>(room / task.tokens_per_question), 1,
                                    questions);
  }
  request.questions = static_cast<int>(1 + shape.Below(questions));
  while (true) {
    SizeGuess guess = task.guess;
    guess.tokens_at_zero += (request.questions - 1) * task.tokens_per_question;
    FittedDraft fitted = Fit(*task.builder, request, request.length, guess, counter_);
    if (fitted.size == 0) {
      if (request.questions == 1) {
        throw InvalidArgument("--length: {} needs at least {} tokens, {} drawn", task.spec->name,
                              fitted.tokens, request.length);
      }
      request.questions /= 2;
      continue;
    }
    return {std::string(task.spec->name), index, fitted.tokens, std::move(fitted.draft.text),
            std::move(fitted.draft.spans)};
  }
}

std::string ToJson(const TrainingDocument& document) {
  nlohmann::ordered_json json;
  json["task"] = document.task;
  json["index"] = document.index;
  json["length"] = document.length;
  json["text"] = document.text;
  auto spans = nlohmann::ordered_json::array();
  for (const Span& span : document.spans) {
    spans.push_back({span.begin, span.end, span.is_answer ? 1 : 0});
  }
  json["spans"] = std::move(spans);
  return json.dump();
}

}  // namespace litecache::eval
