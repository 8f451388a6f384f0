#include "eval/longbench/longbench.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/progress.h"
#include "eval/longbench/records.h"
#include "eval/longbench/truncate.h"
#include "io/file.h"

namespace litecache::eval {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffixE = "_e";

// The first existing file of the candidates; empty if there is none.
fs::path FirstFile(const std::vector<fs::path>& candidates) {
  for (const fs::path& path : candidates) {
    std::error_code error;
    if (fs::is_regular_file(path, error)) return path;
  }
  return {};
}

std::string ReadDataset(const fs::path& directory, const std::string& name, fs::path* path) {
  const std::string file = name + ".jsonl";
  *path = FirstFile({directory / file, directory / "data" / file});
  if (path->empty()) {
    throw FileError(
        "{}: not found. LongBench's samples come as data.zip from "
        "https://huggingface.co/datasets/THUDM/LongBench: unpack it there, or name the directory "
        "it is in",
        (directory / file).string());
  }
  return io::ReadTextFile(*path);
}

LongBenchPrompts ReadPrompts(const fs::path& directory) {
  const std::string file = "dataset2prompt.json";
  const fs::path path = FirstFile(
      {directory / file, directory / "config" / file, directory / "LongBench" / "config" / file});
  if (path.empty()) {
    throw FileError(
        "{}: not found. LongBench's prompts are the file LongBench/config/{} of "
        "https://github.com/THUDM/LongBench: put it there, beside the samples",
        (directory / file).string(), file);
  }
  return LongBenchPrompts::FromJson(io::ReadTextFile(path), path.string());
}

std::vector<std::string> ExpandNames(const std::vector<std::string>& names) {
  std::vector<std::string> expanded;
  for (const std::string& name : names) {
    if (name == "all" || name == "all_e") {
      for (const LongBenchDataset& dataset : LongBenchDatasets()) {
        if (name == "all") expanded.emplace_back(dataset.name);
        if (name == "all_e" && dataset.in_e) expanded.push_back(std::string(dataset.name) + "_e");
      }
    } else {
      FindLongBench(name);
      expanded.push_back(name);
    }
  }
  if (expanded.empty()) throw InvalidArgument("LongBench: the list of datasets is empty");
  return expanded;
}

std::string_view WithoutSuffix(std::string_view name) {
  if (name.ends_with(kSuffixE)) name.remove_suffix(kSuffixE.size());
  return name;
}

}  // namespace

const std::vector<LongBenchDataset>& LongBenchDatasets() {
  static const std::vector<LongBenchDataset> datasets = {
      {"narrativeqa", "qa_f1", 128, true, false},
      {"qasper", "qa_f1", 128, true, true},
      {"multifieldqa_en", "qa_f1", 64, true, true},
      {"multifieldqa_zh", "qa_f1_zh_chars", 64, true, false},
      {"hotpotqa", "qa_f1", 32, true, true},
      {"2wikimqa", "qa_f1", 32, true, true},
      {"musique", "qa_f1", 32, true, false},
      {"dureader", "rouge_l_zh_chars", 128, true, false},
      {"gov_report", "rouge_l", 512, true, true},
      {"qmsum", "rouge_l", 512, true, false},
      {"multi_news", "rouge_l", 512, true, true},
      {"vcsum", "rouge_l_zh_chars", 512, true, false},
      {"trec", "classification", 64, false, true},
      {"triviaqa", "qa_f1_first_line", 32, false, true},
      {"samsum", "rouge_l_first_line", 128, false, true},
      {"lsht", "classification", 64, false, false},
      {"passage_count", "count", 32, true, true},
      {"passage_retrieval_en", "retrieval", 32, true, true},
      {"passage_retrieval_zh", "retrieval_zh", 32, true, false},
      {"lcc", "code_similarity", 64, false, true},
      {"repobench-p", "code_similarity", 64, false, true},
  };
  return datasets;
}

std::vector<std::string_view> LongBenchNames() {
  std::vector<std::string_view> names;
  for (const LongBenchDataset& dataset : LongBenchDatasets()) names.push_back(dataset.name);
  return names;
}

const LongBenchDataset& FindLongBench(std::string_view name) {
  const bool of_e = name.ends_with(kSuffixE);
  for (const LongBenchDataset& dataset : LongBenchDatasets()) {
    if (dataset.name == WithoutSuffix(name) && (!of_e || dataset.in_e)) return dataset;
  }
  throw InvalidArgument("no LongBench dataset '{}'; the datasets are {}", name,
                        fmt::join(LongBenchNames(), ", "));
}

std::vector<Sample> LoadLongBench(const LongBenchOptions& options,
                                  const tokenizer::Tokenizer& tokenizer) {
  const std::vector<std::string> names = ExpandNames(options.datasets);
  std::error_code error;
  if (!fs::is_directory(options.directory, error)) {
    throw FileError(
        "{}: is not a directory. LongBench's samples (data.zip from "
        "https://huggingface.co/datasets/THUDM/LongBench, unpacked) and its prompts "
        "(LongBench/config/dataset2prompt.json of https://github.com/THUDM/LongBench) belong there",
        options.directory.string());
  }
  const LongBenchPrompts prompts = ReadPrompts(options.directory);
  std::vector<Sample> samples;
  for (const std::string& name : names) {
    const LongBenchDataset& dataset = FindLongBench(name);
    const int64_t budget = options.max_length - options.reserved - dataset.max_new_tokens;
    if (budget < 2) {
      throw InvalidArgument(
          "{}: a length of {} tokens has no room for {} of the answer, {} of the chat template and "
          "a prompt",
          name, options.max_length, dataset.max_new_tokens, options.reserved);
    }
    fs::path path;
    const std::string text = ReadDataset(options.directory, name, &path);
    std::vector<LongBenchRecord> records = ParseLongBench(text, path.string(), dataset);
    const auto total = static_cast<int64_t>(records.size());
    const int64_t begin = std::clamp<int64_t>(options.start, 0, total);
    const int64_t end = options.count > 0 ? begin + std::min(options.count, total - begin) : total;
    ProgressBar bar(name, end - begin, "samples");
    for (int64_t i = begin; i < end; ++i) {
      LongBenchRecord& record = records[static_cast<size_t>(i)];
      TruncatedText prompt =
          TruncateMiddle(prompts.Render(dataset.name, record), budget, tokenizer);
      Sample sample;
      sample.id = fmt::format("{}/{}", name, i);
      sample.task = name;
      sample.input = std::move(prompt.text);
      sample.chat_template = dataset.chat_template;
      sample.references = std::move(record.answers);
      sample.classes = std::move(record.classes);
      sample.max_new_tokens = dataset.max_new_tokens;
      sample.metric = dataset.metric;
      sample.length = options.max_length;
      sample.metadata = {{"index", i},
                         {"_id", record.id},
                         {"language", record.language},
                         {"words", record.words},
                         {"tokens", prompt.tokens},
                         {"truncated", prompt.truncated}};
      samples.push_back(std::move(sample));
      bar.Update(i + 1 - begin);
    }
  }
  return samples;
}

}  // namespace litecache::eval
