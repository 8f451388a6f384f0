#include "lab/papers/accuracy_run.h"

#include <map>
#include <memory>
#include <utility>

#include "base/error.h"
#include "eval/run/generation.h"
#include "eval/run/suites.h"
#include "io/hub.h"
#include "model/fingerprint.h"
#include "tokenizer/tokenizer.h"

namespace litecache::bench::papers {

struct AccuracyRunner::Prepared {
  AccuracyRun run;  // the run that the samples were made for
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  std::vector<eval::SampleGroup> groups;
  std::map<std::string, std::vector<int32_t>> prompts;  // keyed by their text
};

AccuracyRunner::AccuracyRunner() = default;
AccuracyRunner::~AccuracyRunner() = default;

const AccuracyRunner::Prepared& AccuracyRunner::Prepare(const AccuracyRun& run) {
  if (prepared_ != nullptr && prepared_->run.model == run.model &&
      prepared_->run.length == run.length && prepared_->run.tasks == run.tasks &&
      prepared_->run.count == run.count) {
    return *prepared_;
  }
  auto prepared = std::make_unique<Prepared>();
  prepared->run = run;
  prepared->tokenizer = tokenizer::Tokenizer::FromModel(io::ResolveModel(run.model));
  eval::SuiteOptions suite;
  suite.tasks = run.tasks;
  suite.lengths = {run.length};
  suite.count = run.count;
  suite.note = [](const std::string&) {};
  for (eval::SampleGroup& group : eval::RulerGroups(suite, prepared->tokenizer)) {
    const auto samples = std::make_shared<const std::vector<eval::Sample>>(group.make());
    for (const eval::Sample& sample : *samples) {
      std::string text = sample.input + sample.answer_prefix;
      auto ids =
          prepared->tokenizer->Encode(text, {.add_special_tokens = true, .parse_special = false});
      prepared->prompts.emplace(std::move(text), std::move(ids));
    }
    group.make = [samples] { return *samples; };
    prepared->groups.push_back(std::move(group));
  }
  prepared_ = std::move(prepared);
  return *prepared_;
}

nlohmann::ordered_json AccuracyRunner::Run(const AccuracyRun& run) {
  const Prepared& prepared = Prepare(run);
  const std::filesystem::path directory = io::ResolveModel(run.model);
  eval::RunContext context;
  context.model = model::ModelConfig::FromModel(directory);
  context.configurations = {{"system", run.engine}};
  context.options = {eval::DescribeOptions(run.engine, directory)};
  context.max_batch = run.engine.max_batch;
  context.info = {.suite = "ruler",
                  .model = run.model,
                  .fingerprint = model::Fingerprint(directory),
                  .dtype = run.engine.dtype};
  context.load = [&](EngineOptions options) {
    options.show_progress = false;
    return Engine::Load(run.model, options);
  };
  context.interrupted = [] { return false; };
  std::string notes;
  context.note = [&](const std::string& line) { notes += line + "\n"; };
  context.info.description = eval::CheckConfigurations(context, run.length);
  eval::Journal journal("");
  journal.Begin(context.info, context.configurations, context.options);
  const int64_t failed = eval::RunGeneration(
      context, prepared.groups,
      [&](const eval::Sample& sample) {
        return prepared.prompts.at(sample.input + sample.answer_prefix);
      },
      journal);
  if (failed > 0) throw Error(fmt::format("{} samples failed: {}", failed, notes));

  std::map<std::string, std::pair<double, int64_t>> tasks;
  eval::KvSums kv;
  for (const eval::Prediction& prediction : journal.results().predictions) {
    auto& [sum, count] = tasks[prediction.task];
    sum += prediction.score;
    ++count;
    kv += prediction.kv;
  }
  nlohmann::ordered_json json = {{"average", 0.0}, {"tasks", nlohmann::ordered_json::object()}};
  double sum = 0;
  for (const auto& [task, score] : tasks) {
    const double mean = 100 * score.first / static_cast<double>(score.second);
    json["tasks"][task] = mean;
    sum += mean;
  }
  if (!tasks.empty()) json["average"] = sum / static_cast<double>(tasks.size());
  if (kv.lookups > 0) json["hit_ratio"] = kv.HitRatio();
  json["moved_per_token"] = kv.MovedPerToken();
  return json;
}

}  // namespace litecache::bench::papers
