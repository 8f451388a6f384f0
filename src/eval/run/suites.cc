#include "eval/run/suites.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "base/error.h"
#include "eval/longbench/longbench.h"
#include "eval/ruler/suite.h"
#include "eval/ruler/tokens.h"
#include "eval/run/context.h"
#include "eval/task.h"

namespace litecache::eval {
namespace {

constexpr int64_t kRulerCount = 25;

bool IsAll(const std::vector<std::string>& tasks) { return tasks.size() == 1 && tasks[0] == "all"; }

// The samples of all tasks that have some at this length.
std::vector<Sample> RulerSamples(const SuiteOptions& options, GenerateOptions generate,
                                 const TokenCounter& counter) {
  std::vector<Sample> samples;
  for (const std::string& task : ExpandTasks(generate)) {
    generate.tasks = {task};
    try {
      auto made = MakeRulerSamples(generate, counter);
      std::move(made.begin(), made.end(), std::back_inserter(samples));
    } catch (const Error& error) {
      if (!IsAll(options.tasks)) throw;
      options.note(fmt::format("{} at {} tokens is left out: {}", task,
                               FormatTokens(generate.length + options.overhead), error.what()));
    }
  }
  return samples;
}

}  // namespace

std::vector<SampleGroup> RulerGroups(const SuiteOptions& options,
                                     std::shared_ptr<const tokenizer::Tokenizer> tokenizer) {
  const TokenCounter counter = CountTokens(std::move(tokenizer));
  std::vector<SampleGroup> groups;
  const int64_t count = options.count > 0 ? options.count : kRulerCount;
  for (const int64_t length : options.lengths) {
    GenerateOptions generate;
    generate.tasks = options.tasks;
    generate.qa_data = options.qa_data;
    const auto tasks = static_cast<int64_t>(ExpandTasks(generate).size());
    generate.length = length - options.overhead;
    generate.seed = options.seed;
    generate.haystack = options.haystack;
    generate.count = 1;
    if (!IsAll(options.tasks)) RulerSamples(options, generate, counter);
    generate.count = count;
    groups.push_back({length, tasks * count, [options, generate, counter] {
                        return RulerSamples(options, generate, counter);
                      }});
  }
  return groups;
}

std::vector<SampleGroup> LongBenchGroups(
    const SuiteOptions& options, const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer) {
  std::vector<SampleGroup> groups;
  for (const int64_t length : options.lengths) {
    LongBenchOptions load;
    load.directory = options.data;
    load.datasets = options.tasks;
    load.max_length = length - options.overhead;
    load.count = 1;
    const auto tried = static_cast<int64_t>(LoadLongBench(load, *tokenizer).size());
    load.count = options.count;
    constexpr int64_t kDatasetSamples = 200;
    groups.push_back({length, tried * (options.count > 0 ? options.count : kDatasetSamples),
                      [load, tokenizer] { return LoadLongBench(load, *tokenizer); }});
  }
  return groups;
}

std::vector<SampleGroup> FileGroups(const std::filesystem::path& path, const SuiteOptions& options,
                                    const PromptEncoder& encode, int64_t max_context) {
  std::map<int64_t, std::vector<Sample>> by_length;
  std::map<std::string, int64_t> counts;
  if (!IsAll(options.tasks)) {
    for (const std::string& task : options.tasks) counts[task] = 0;
  }
  for (Sample& sample : LoadJsonl(path)) {
    if (!IsAll(options.tasks) && !counts.contains(sample.task)) continue;
    if (options.count > 0 && counts[sample.task] >= options.count) continue;
    ++counts[sample.task];
    const int64_t tokens = static_cast<int64_t>(encode(sample).size()) + sample.max_new_tokens;
    if (tokens > max_context) {
      throw InvalidArgument(
          "{}: sample '{}': its prompt and answer take {} tokens, the model's context is {}",
          path.string(), sample.id, tokens, max_context);
    }
    const int64_t length = sample.length > 0 ? sample.length : tokens;
    const auto group = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(length)));
    by_length[group].push_back(std::move(sample));
  }
  for (const auto& [task, count] : counts) {
    if (count == 0) {
      throw InvalidArgument("--tasks: {} has no samples of '{}'", path.string(), task);
    }
  }
  std::vector<SampleGroup> groups;
  for (auto& [length, samples] : by_length) {
    const auto count = static_cast<int64_t>(samples.size());
    groups.push_back({length, count, [samples = std::move(samples)] { return samples; }});
  }
  return groups;
}

}  // namespace litecache::eval
