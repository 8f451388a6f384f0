#include "eval/ruler/ruler.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "eval/ruler/fit.h"

namespace litecache::eval {
namespace {

[[noreturn]] void ThrowTooShort(const TaskSpec& spec, int64_t least, int64_t length) {
  throw InvalidArgument("--length: {} needs at least {} tokens, {} given", spec.name, least,
                        length);
}

}  // namespace

Generator::Generator(TaskOptions options, TokenCounter counter)
    : options_(std::move(options)),
      counter_(std::move(counter)),
      spec_(FindTask(options_.task)),
      builder_(
          MakeBuilder(spec_, options_.split, {options_.haystack, options_.questions}, counter_)) {
  BuildRequest request;
  request.seed = DeriveSeed(HashText(spec_.name), options_.seed);
  request.length = options_.length;
  request.size = builder_->MinSize(request);
  const int64_t least = counter_(builder_->Build(request).text) + spec_.max_new_tokens;
  if (least > options_.length) ThrowTooShort(spec_, least, options_.length);
  guess_ = GuessSizes(*builder_, request, counter_);
}

RulerSample Generator::Make(int64_t index) const {
  BuildRequest request;
  request.index = index;
  request.length = options_.length;
  // Task and split are part of the seed, so that equal --seed values never repeat a draw elsewhere.
  request.seed =
      DeriveSeed(DeriveSeed(DeriveSeed(HashText(spec_.name), HashText(SplitName(options_.split))),
                            options_.seed),
                 static_cast<uint64_t>(index));
  const int64_t budget = options_.length - spec_.max_new_tokens;
  FittedDraft fitted = Fit(*builder_, request, budget, guess_, counter_);
  if (fitted.size == 0) {
    ThrowTooShort(spec_, fitted.tokens + spec_.max_new_tokens, options_.length);
  }
  if (fitted.exhausted) {
    throw InvalidArgument("--length: {} has words for {} tokens only, {} asked for", spec_.name,
                          fitted.tokens + spec_.max_new_tokens, options_.length);
  }
  RulerSample sample;
  sample.task = spec_.name;
  sample.index = index;
  sample.seed = options_.seed;
  sample.split = options_.split;
  sample.length = fitted.tokens + spec_.max_new_tokens;
  sample.max_new_tokens = spec_.max_new_tokens;
  sample.metric = spec_.metric;
  sample.input = std::move(fitted.draft.text);
  sample.answer_prefix = std::move(fitted.draft.answer_prefix);
  sample.outputs = std::move(fitted.draft.outputs);
  sample.needles = std::move(fitted.draft.needles);
  return sample;
}

std::string ToJson(const RulerSample& sample) {
  nlohmann::ordered_json json;
  json["task"] = sample.task;
  json["index"] = sample.index;
  json["seed"] = sample.seed;
  json["split"] = SplitName(sample.split);
  json["length"] = sample.length;
  json["max_new_tokens"] = sample.max_new_tokens;
  json["metric"] = sample.metric;
  json["input"] = sample.input;
  json["outputs"] = sample.outputs;
  json["answer_prefix"] = sample.answer_prefix;
  auto depths = nlohmann::ordered_json::array();
  for (const Needle& needle : sample.needles) depths.push_back(needle.depth);
  json["depths"] = std::move(depths);
  return json.dump();
}

}  // namespace litecache::eval
