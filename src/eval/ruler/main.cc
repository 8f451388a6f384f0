// litecache-ruler: only the generator, statically linked, for machines without the rest of
// LiteCache (tools/train runs it there).
#include <CLI/CLI.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "base/error.h"
#include "base/units.h"
#include "eval/ruler/run.h"
#include "eval/ruler/tokens.h"

namespace {

using namespace litecache;  // NOLINT: the namespace of the program itself
using namespace litecache::eval;

struct Arguments {
  std::string tasks = "all";
  std::string length = "4k";
  int64_t count = 1;
  int64_t start = 0;
  uint64_t seed = 42;
  std::string split;
  std::string haystack;
  std::string pieces = "auto";
  std::string qa_data;
  double chars_per_token = 4;
  int threads = 0;
  std::string output;
  std::string tokenizer;
  std::string format = "json";
  bool bulk = false;
  int questions = 1;
};

std::vector<std::string> SplitList(const std::string& text) {
  std::vector<std::string> items;
  std::stringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) items.push_back(item);
  return items;
}

void Generate(const Arguments& arguments, std::ostream& output) {
  std::shared_ptr<const tokenizer::Tokenizer> model_tokenizer;
  if (!arguments.tokenizer.empty()) {
    model_tokenizer = std::filesystem::is_directory(arguments.tokenizer)
                          ? tokenizer::Tokenizer::FromModel(arguments.tokenizer)
                          : tokenizer::Tokenizer::FromFile(arguments.tokenizer);
  }
  const TokenCounter counter = model_tokenizer != nullptr
                                   ? CountTokens(model_tokenizer)
                                   : EstimateTokens(arguments.chars_per_token);
  const auto haystack = arguments.haystack.empty()
                            ? Haystack::Default()
                            : Haystack::FromPath(arguments.haystack, arguments.pieces);
  if (arguments.bulk) {
    BulkOptions options;
    options.tasks = ParseTaskWeights(arguments.tasks);
    const size_t colon = arguments.length.find(':');
    options.min_length = ParseTokens(arguments.length.substr(0, colon), "--length");
    options.max_length = colon == std::string::npos
                             ? options.min_length
                             : ParseTokens(arguments.length.substr(colon + 1), "--length");
    options.max_questions = arguments.questions;
    options.seed = arguments.seed;
    options.split = ParseSplit(arguments.split.empty() ? "train" : arguments.split);
    options.haystack = haystack;
    std::function<std::string(const TrainingDocument&)> format;
    if (arguments.format == "tokens") {
      if (model_tokenizer == nullptr) throw InvalidArgument("--format tokens needs --tokenizer");
      format = TokenFormat(model_tokenizer);
    }
    RunBulk(options, arguments.start, arguments.count, arguments.threads, counter, output, format);
    return;
  }
  GenerateOptions options;
  options.tasks = SplitList(arguments.tasks);
  options.length = ParseTokens(arguments.length, "--length");
  options.count = arguments.count;
  options.start = arguments.start;
  options.seed = arguments.seed;
  options.split = ParseSplit(arguments.split.empty() ? "test" : arguments.split);
  options.haystack = haystack;
  options.qa_data = arguments.qa_data;
  options.threads = arguments.threads;
  RunGenerate(options, counter, output);
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("RULER's long-context tasks, as JSON lines");
  app.add_option(
      "--task,--tasks", arguments.tasks,
      "Tasks by name, comma-separated, or all; --bulk takes weights: niah_single_1:2,vt:1");
  app.add_option("--length", arguments.length,
                 "Tokens of a sample: 16k; --bulk takes a range 1k:4k");
  app.add_option("--count", arguments.count, "Samples a task (--bulk: documents)");
  app.add_option("--start", arguments.start, "Index of the first one");
  app.add_option("--seed", arguments.seed, "Seed");
  app.add_option("--split", arguments.split, "train or test: halves of words and numbers");
  app.add_option("--haystack", arguments.haystack, "File or directory for the essay tasks");
  app.add_option("--haystack-pieces", arguments.pieces, "auto, sentences or lines");
  app.add_option("--qa-data", arguments.qa_data, "Directory of SQuAD and HotpotQA for qa_1, qa_2")
      ->envname("LITECACHE_QA_DATA");
  app.add_option("--tokenizer", arguments.tokenizer, "tokenizer.json or model directory");
  app.add_option("--format", arguments.format, "--bulk: json, or tokens (binary)")
      ->check(CLI::IsMember({"json", "tokens"}));
  app.add_option("--chars-per-token", arguments.chars_per_token, "Estimate without --tokenizer");
  app.add_option("--threads", arguments.threads, "Threads; 0: one per core");
  app.add_option("--output", arguments.output, "File; standard output if absent");
  app.add_flag("--bulk", arguments.bulk, "Training documents with answers");
  app.add_option("--questions", arguments.questions, "--bulk: questions a document, at most");
  CLI11_PARSE(app, argc, argv);
  std::signal(SIGPIPE, SIG_IGN);
  try {
    if (arguments.output.empty()) {
      std::ios::sync_with_stdio(false);
      Generate(arguments, std::cout);
    } else {
      std::ofstream file(arguments.output, std::ios::binary);
      if (!file) throw FileError("{}: cannot be written", arguments.output);
      Generate(arguments, file);
    }
  } catch (const Error& error) {
    std::cerr << "litecache-ruler: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
