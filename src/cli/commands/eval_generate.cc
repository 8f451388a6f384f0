// litecache eval generate: RULER's long-context tasks as JSON lines.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ostream>

#include "base/units.h"
#include "cli/command.h"
#include "cli/exit_codes.h"
#include "cli/options.h"
#include "cli/output.h"
#include "eval/ruler/run.h"
#include "eval/ruler/tokens.h"
#include "io/hub.h"
#include "tokenizer/tokenizer.h"

namespace litecache::cli {
namespace {

class EvalGenerateCommand final : public Command {
 public:
  std::string Name() const override { return "eval generate"; }
  std::string Summary() const override {
    return "Make long-context test samples (RULER's tasks) of an exact length.";
  }
  std::string Notes() const override {
    return fmt::format(
        "One JSON object a line: input, outputs, max_new_tokens, metric, and where it came from. A "
        "sample depends only on task, length, split, seed, its index, the haystack and the "
        "tokenizer. Words and numbers of the splits train and test are disjoint. Tasks: {}.",
        fmt::join(eval::TaskNames(), ", "));
  }
  std::vector<std::string> Examples() const override {
    return {"litecache eval generate --model DIR --task niah_single_1 --length 16k --count 100"};
  }

  void Declare(CLI::App& app) override {
    app.add_option("--task", tasks_,
                   "Comma-separated names, or all; tasks of questions need --qa-data")
        ->type_name("NAMES")
        ->capture_default_str();
    app.add_option("--length", length_, "Tokens of a sample with its answer, e.g. 16k")
        ->type_name("TOKENS")
        ->default_str("4k");
    app.add_option("--count", options_.count, "Samples per task")
        ->type_name("N")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 40).description(""))
        ->capture_default_str();
    app.add_option("--start", options_.start,
                   "Index of the first sample, to continue or to share work")
        ->type_name("N")
        ->check(CLI::Range(int64_t{0}, int64_t{1} << 40).description(""))
        ->capture_default_str();
    app.add_option("-s,--seed", options_.seed, "Seed")->type_name("N")->capture_default_str();
    app.add_option("--split", split_, "test or train")->type_name("NAME")->capture_default_str();
    app.add_option("--haystack", haystack_,
                   "File or directory the needles of the essay tasks are hidden in; default: "
                   "source code that comes with the program")
        ->type_name("PATH");
    app.add_option("--haystack-pieces", pieces_,
                   "Where needles may stand: between sentences or lines; auto looks at the file")
        ->type_name("KIND")
        ->capture_default_str();
    app.add_option("--qa-data", options_.qa_data,
                   "Directory with the questions of qa_1 (SQuAD's dev-v2.0.json) and qa_2 "
                   "(HotpotQA's hotpot_dev_distractor_v1.json)")
        ->type_name("DIR");
    app.add_option("--tokenizer", tokenizer_, "tokenizer.json that counts the tokens")
        ->type_name("FILE");
    app.add_option("--chars-per-token", chars_per_token_,
                   "Without a tokenizer: estimate the tokens of a word by its letters")
        ->type_name("X")
        ->capture_default_str();
    app.add_option("-o,--output", output_, "File to write; default: standard output")
        ->type_name("FILE");
    flags_.DeclareModel(app, false);
    flags_.DeclareSome(app, {"threads"});
  }

  int Run(const std::vector<std::string>&) override {
    options_.tasks = CLI::detail::split(tasks_, ',');
    options_.length = length_.value;
    options_.threads = flags_.options.threads;
    options_.split = eval::ParseSplit(split_);
    if (!haystack_.empty()) options_.haystack = eval::Haystack::FromPath(haystack_, pieces_);
    Output output(output_);
    OutputStreamBuffer buffer(output);
    std::ostream stream(&buffer);
    stream.exceptions(std::ios::badbit);  // passes on errors of a full disk or a closed pipe
    eval::RunGenerate(options_, Counter(), stream);
    output.Close();
    return kOk;
  }

 private:
  eval::TokenCounter Counter() const {
    if (!tokenizer_.empty()) return eval::CountTokens(tokenizer::Tokenizer::FromFile(tokenizer_));
    if (!flags_.model.empty()) {
      return eval::CountTokens(tokenizer::Tokenizer::FromModel(io::ResolveModel(flags_.model)));
    }
    return eval::EstimateTokens(chars_per_token_);
  }

  eval::GenerateOptions options_;
  EngineFlags flags_;
  std::string tasks_ = "all";
  TokenCount length_{4096};
  std::string split_ = "test";
  std::string haystack_;
  std::string pieces_ = "auto";
  std::string tokenizer_;
  double chars_per_token_ = 4;
  std::string output_;
};

}  // namespace

std::unique_ptr<Command> MakeEvalGenerateCommand() {
  return std::make_unique<EvalGenerateCommand>();
}

}  // namespace litecache::cli
