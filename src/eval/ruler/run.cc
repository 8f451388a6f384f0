#include "eval/ruler/run.h"

#include <algorithm>

#include "base/error.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "eval/ruler/questions.h"

namespace litecache::eval {
namespace {

// Number of texts per thread between two writes: enough to even out their different sizes.
constexpr int64_t kBatchPerThread = 4;

void WriteLines(int64_t count, const std::string& label, ThreadPool& pool, std::ostream& output,
                const std::function<std::string(int64_t)>& make) {
  ProgressBar bar(label, count, "samples");
  std::vector<std::string> lines;
  for (int64_t begin = 0; begin < count; begin += static_cast<int64_t>(lines.size())) {
    lines.assign(static_cast<size_t>(std::min(count - begin, kBatchPerThread * pool.size())), {});
    pool.ParallelFor(static_cast<int64_t>(lines.size()), 1, [&](int64_t from, int64_t to, int) {
      for (int64_t i = from; i < to; ++i) lines[static_cast<size_t>(i)] = make(begin + i);
    });
    for (const std::string& line : lines) {
      output.write(line.data(), static_cast<std::streamsize>(line.size()));
    }
    if (!output) throw FileError("output: writing failed (disk full, or the reader is gone)");
    bar.Update(begin + static_cast<int64_t>(lines.size()));
  }
  output.flush();
  if (!output) throw FileError("output: writing failed (disk full, or the reader is gone)");
}

int Threads(int threads) { return threads > 0 ? threads : AvailableCores(); }

void CheckRange(int64_t start, int64_t count) {
  if (count < 1) throw InvalidArgument("--count: {} is less than 1", count);
  if (start < 0) throw InvalidArgument("--start: {} is negative", start);
}

}  // namespace

std::vector<std::string> ExpandTasks(const GenerateOptions& options) {
  std::vector<std::string> tasks = options.tasks;
  if (tasks.size() == 1 && tasks[0] == "all") {
    tasks.clear();
    for (const TaskSpec& spec : TaskSpecs()) {
      if (!NeedsQuestions(spec) || !options.qa_data.empty()) tasks.emplace_back(spec.name);
    }
  }
  if (tasks.empty()) throw InvalidArgument("--task: the list is empty");
  for (const std::string& task : tasks) FindTask(task);
  return tasks;
}

Generator MakeGenerator(const std::string& task, const GenerateOptions& options,
                        const TokenCounter& counter) {
  const auto questions =
      NeedsQuestions(FindTask(task)) ? LoadQuestions(task, options.qa_data) : nullptr;
  return Generator({task, options.length, options.seed, options.split, options.haystack, questions},
                   counter);
}

int64_t RunGenerate(const GenerateOptions& options, const TokenCounter& counter,
                    std::ostream& output) {
  CheckRange(options.start, options.count);
  const std::vector<std::string> tasks = ExpandTasks(options);
  ThreadPool pool(Threads(options.threads));
  for (const std::string& task : tasks) {
    const Generator generator = MakeGenerator(task, options, counter);
    WriteLines(options.count, task, pool, output,
               [&](int64_t i) { return ToJson(generator.Make(options.start + i)) + "\n"; });
  }
  return options.count * static_cast<int64_t>(tasks.size());
}

int64_t RunBulk(const BulkOptions& options, int64_t start, int64_t count, int threads,
                const TokenCounter& counter, std::ostream& output,
                const std::function<std::string(const TrainingDocument&)>& format) {
  CheckRange(start, count);
  const BulkGenerator generator(options, counter);
  ThreadPool pool(Threads(threads));
  WriteLines(count, "documents", pool, output, [&](int64_t i) {
    const TrainingDocument document = generator.Make(start + i);
    return format ? format(document) : ToJson(document) + "\n";
  });
  return count;
}

}  // namespace litecache::eval
