#include "eval/ruler/suite.h"

#include <fmt/core.h>

#include <utility>

#include "base/thread_pool.h"

namespace litecache::eval {

Sample ToSample(RulerSample made) {
  Sample sample;
  sample.id = fmt::format("{}/{}", made.task, made.index);
  sample.task = std::move(made.task);
  sample.input = std::move(made.input);
  sample.input.resize(sample.input.size() - made.answer_prefix.size());
  sample.answer_prefix = std::move(made.answer_prefix);
  sample.references = std::move(made.outputs);
  sample.max_new_tokens = made.max_new_tokens;
  sample.metric = std::move(made.metric);
  sample.length = made.length;
  auto depths = nlohmann::ordered_json::array();
  for (const Needle& needle : made.needles) depths.push_back(needle.depth);
  sample.metadata = {{"index", made.index},
                     {"seed", made.seed},
                     {"split", SplitName(made.split)},
                     {"depths", std::move(depths)}};
  return sample;
}

std::vector<Sample> MakeRulerSamples(const GenerateOptions& options, const TokenCounter& counter) {
  ThreadPool pool(options.threads > 0 ? options.threads : AvailableCores());
  std::vector<Sample> samples;
  for (const std::string& task : ExpandTasks(options)) {
    const Generator generator = MakeGenerator(task, options, counter);
    const size_t begin = samples.size();
    samples.resize(begin + static_cast<size_t>(options.count));
    pool.ParallelFor(options.count, 1, [&](int64_t from, int64_t to, int) {
      for (int64_t i = from; i < to; ++i) {
        Sample& sample = samples[begin + static_cast<size_t>(i)];
        sample = ToSample(generator.Make(options.start + i));
        sample.length = options.length;
      }
    });
  }
  return samples;
}

}  // namespace litecache::eval
