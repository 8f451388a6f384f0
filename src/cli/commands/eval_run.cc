// litecache eval run: the accuracy cost of an approximate KV cache.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/units.h"
#include "cli/chat_prompt.h"
#include "cli/command.h"
#include "cli/exit_codes.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/output.h"
#include "eval/report/summary.h"
#include "eval/ruler/words.h"
#include "eval/run/generation.h"
#include "eval/run/perplexity.h"
#include "eval/run/suites.h"
#include "eval/text_files.h"
#include "io/hub.h"
#include "model/fingerprint.h"
#include "tokenizer/tokenizer.h"

namespace litecache::cli {
namespace {

constexpr size_t kWidth = 100;

std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> words;
  for (auto& word : CLI::detail::split(list, ',')) {
    if (!word.empty()) words.push_back(std::move(word));
  }
  return words;
}

// The ids that the tokenizer puts before a text.
std::vector<int32_t> TextPrefix(const tokenizer::Tokenizer& tokenizer) {
  const auto with = tokenizer.Encode("a", {.add_special_tokens = true});
  const auto without = tokenizer.Encode("a", {.add_special_tokens = false});
  const auto text = std::search(with.begin(), with.end(), without.begin(), without.end());
  return {with.begin(), text};
}

class EvalRunCommand final : public Command {
 public:
  std::string Name() const override { return "eval run"; }
  std::string Summary() const override {
    return "Compare KV cache policies on RULER, LongBench, own samples, or perplexity.";
  }
  std::string Notes() const override {
    return "Every configuration is run: `full` once, `litecache` with each of --retrievers and "
           "--budgets, and each --config. With --json every result is a line of the file, and "
           "the same command continues where it stopped. The command prints tables; `litecache "
           "eval report` makes Markdown and HTML from the file.";
  }
  std::vector<std::string> Examples() const override {
    return {
        "litecache eval run --suite ruler --model DIR --retrievers hata,quest --budgets "
        "5%,10% --json r.jsonl",
        "litecache eval run --suite perplexity --model DIR --lengths 32k --json ppl.jsonl",
        "litecache eval run --suite ruler --model DIR --config "
        "fixed:thresholds=fixed,eta=0.8"};
  }
  std::vector<std::string> CommonOptions() const override {
    return {"--suite",   "--policies", "--retrievers", "--budgets", "--config",
            "--lengths", "--tasks",    "--count",      "--json"};
  }

  void Declare(CLI::App& app) override {
    app.add_option("--suite", suite_,
                   "ruler, longbench, perplexity, or a file of samples (JSON lines as of `eval "
                   "generate`)")
        ->type_name("NAME|FILE")
        ->required();
    app.add_option("--policies", policies_,
                   "Comma-separated names of --kv-policy, whose place it takes; litecache with all "
                   "--retrievers and --budgets")
        ->type_name("LIST")
        ->capture_default_str();
    app.add_option("--retrievers", retrievers_,
                   "Comma-separated: exact, hata, keys, keys2, quest, loki; default: --retriever")
        ->type_name("LIST");
    app.add_option("--budgets", budgets_, "Comma-separated, e.g. 2%,5%,2k; default: --kv-budget")
        ->type_name("LIST");
    AddRepeated(app, "--config", named_,
                "An additional configuration NAME:key=value,...: policy litecache with these "
                "options of the KV cache and the engine; can be given several times");
    app.add_option("--lengths", lengths_,
                   "Comma-separated tokens of prompt and answer, or of a window; default: those of "
                   "4k,8k,16k,32k that the model's context holds")
        ->type_name("LIST");
    app.add_option("--tasks", tasks_, "Comma-separated names, or all")
        ->type_name("LIST")
        ->capture_default_str();
    app.add_option(
           "--count", count_,
           "Samples per task, or windows per length; default: 25 of ruler, 8 windows, else all")
        ->type_name("N")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 32).description(""));
    app.add_option("-s,--seed", suite_options_.seed, "Seed of RULER's samples")
        ->type_name("N")
        ->capture_default_str();
    app.add_option("--haystack", haystack_,
                   "Text that RULER's needles are hidden in; default: the program's own")
        ->type_name("PATH");
    app.add_option("--haystack-pieces", pieces_,
                   "Where needles may stand: between sentences or lines; auto looks at the file")
        ->type_name("KIND")
        ->capture_default_str();
    app.add_option("--qa-data", suite_options_.qa_data,
                   "Directory with the questions of RULER's qa_1 and qa_2 (see `eval generate`)")
        ->type_name("DIR")
        ->envname("LITECACHE_QA_DATA");
    app.add_option("--data", suite_options_.data, "Directory of LongBench's files")
        ->type_name("DIR");
    app.add_flag("--chat", chat_, "Wrap prompts in the model's chat template");
    app.add_option("--chat-template", chat_template_, "Use this template instead of the model's")
        ->type_name("FILE");
    app.add_option("--text", text_,
                   "Text for perplexity: a file or a directory; default: the program's own Python "
                   "sources")
        ->type_name("PATH");
    app.add_option(
           "--decode-tokens", decode_tokens_,
           "Perplexity: scored tokens at a window's end, fed one per step, as in generation")
        ->type_name("N")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 32).description(""))
        ->capture_default_str();
    app.add_option("-o,--json", json_, "Results, one line each; an existing file is continued")
        ->type_name("FILE");
    app.add_flag("--restart", restart_, "Discard the contents of the results file");
    flags_.DeclareModel(app, true);
    flags_.DeclareRun(app);
  }

  int Run(const std::vector<std::string>&) override {
    Prepare();
    const InterruptScope interrupt;
    context_.interrupted = [&] { return interrupt.Interrupted(); };
    eval::Journal journal(json_, restart_);
    int64_t failed = 0;
    if (suite_ == "perplexity") {
      const eval::PerplexityOptions options = PerplexityOptions();
      Begin(&journal);
      eval::RunPerplexity(context_, options, journal);
    } else {
      const auto groups = Groups();
      Begin(&journal);
      failed = eval::RunGeneration(
          context_, groups, [this](const eval::Sample& s) { return Encode(s); }, journal);
    }
    Output output;
    for (const eval::Table& table : eval::MakeTables(eval::Summarize(journal.results()))) {
      output.Write(eval::ToText(table, kWidth) + "\n");
    }
    output.Close();
    return End(interrupt.Interrupted(), failed);
  }

 private:
  // Detects errors that can be found before a model is loaded.
  void Prepare() {
    if (json_ == "-") throw UsageError("--json: name a file, so that the run can be continued");
    directory_ = io::ResolveModel(flags_.model);
    context_.model = model::ModelConfig::FromModel(directory_);
    tokenizer_ = tokenizer::Tokenizer::FromModel(directory_);
    if (chat_ || !chat_template_.empty()) {
      chat_prompt_ = std::make_unique<ChatPrompt>(*tokenizer_, directory_, chat_template_);
    }
    const EngineOptions engine = flags_.ToEngineOptions();
    if (engine.max_batch > 0) context_.max_batch = engine.max_batch;
    eval::ConfigurationRequest request;
    request.base = engine;
    request.policies = Split(policies_);
    request.retrievers = Split(retrievers_);
    request.budgets = Split(budgets_);
    request.named = named_;
    context_.configurations = eval::MakeConfigurations(request);
    AddReference();
    for (const auto& configuration : context_.configurations) {
      context_.options.push_back(eval::DescribeOptions(configuration.engine, directory_));
    }
    suite_options_.tasks = Split(tasks_);
    if (suite_options_.tasks.empty()) throw UsageError("--tasks: the list is empty");
    suite_options_.count = count_;
    suite_options_.note = context_.note = [this](const std::string& line) { Note(line); };
    context_.load = [this](EngineOptions options) {
      options.show_progress = false;
      return Engine::Load(flags_.model, options);
    };
    ParseLengths();
  }

  // Divergence is measured against a reference.
  void AddReference() {
    auto& all = context_.configurations;
    const bool there = std::any_of(all.begin(), all.end(), [](const auto& configuration) {
      return configuration.engine.kv.policy == "full";
    });
    if (suite_ != "perplexity" || there) return;
    all.insert(all.begin(), {"full", all.front().engine});
    all.front().engine.kv.policy = "full";
  }

  void ParseLengths() {
    const int64_t context = flags_.options.max_context > 0
                                ? std::min(flags_.options.max_context, context_.model.max_context)
                                : context_.model.max_context;
    context_.model.max_context = context;
    const bool is_file = suite_ != "ruler" && suite_ != "longbench" && suite_ != "perplexity";
    for (const std::string& word : Split(lengths_)) {
      if (is_file) throw UsageError("--lengths cannot be used with a file of samples");
      const int64_t length = ParseTokens(word, "--lengths");
      if (length > context) {
        throw InvalidArgument("--lengths: {} tokens are more than the context of {} tokens", length,
                              context);
      }
      suite_options_.lengths.push_back(length);
    }
    std::sort(suite_options_.lengths.begin(), suite_options_.lengths.end());
    if (std::adjacent_find(suite_options_.lengths.begin(), suite_options_.lengths.end()) !=
        suite_options_.lengths.end()) {
      throw UsageError("--lengths: {} names a length twice", lengths_);
    }
    if (!suite_options_.lengths.empty() || is_file) return;
    if (suite_ != "longbench") {
      for (const int64_t length : {4096, 8192, 16384, 32768}) {
        if (length <= context) suite_options_.lengths.push_back(length);
      }
    }
    if (suite_options_.lengths.empty()) suite_options_.lengths.push_back(context);
  }

  std::vector<eval::SampleGroup> Groups() {
    suite_options_.overhead = ChatOverhead();
    if (suite_ == "ruler") {
      if (!haystack_.empty()) {
        suite_options_.haystack = eval::Haystack::FromPath(haystack_, pieces_);
      }
      return eval::RulerGroups(suite_options_, tokenizer_);
    }
    if (suite_ == "longbench") {
      if (suite_options_.data.empty()) {
        throw UsageError(
            "--suite longbench needs --data DIR, the directory of its published files");
      }
      return eval::LongBenchGroups(suite_options_, tokenizer_);
    }
    if (!std::filesystem::exists(suite_)) {
      throw UsageError("--suite: '{}' is not ruler, longbench, perplexity or an existing file",
                       suite_);
    }
    auto groups = eval::FileGroups(
        suite_, suite_options_, [this](const eval::Sample& s) { return Encode(s); },
        context_.model.max_context);
    for (const auto& group : groups) suite_options_.lengths.push_back(group.length);
    return groups;
  }

  eval::PerplexityOptions PerplexityOptions() {
    eval::PerplexityOptions options;
    options.lengths = suite_options_.lengths;
    if (count_ > 0) options.windows = count_;
    options.decode_tokens = decode_tokens_;
    options.prefix = TextPrefix(*tokenizer_);
    const std::string text =
        text_.empty() ? std::string(eval::DefaultHaystackText()) : eval::ReadTexts(text_);
    options.text = tokenizer_->Encode(text, {.add_special_tokens = false, .parse_special = false});
    context_.info.text = text_.empty() ? "the program's own Python sources" : text_;
    eval::CheckPerplexity(context_, options);
    return options;
  }

  // Number of tokens that the chat template adds to a plain prompt.
  int64_t ChatOverhead() const {
    if (chat_prompt_ == nullptr) return 0;
    eval::Sample sample;
    sample.input = "a";
    const auto with = Encode(sample).size();
    sample.chat_template = false;
    const auto without = Encode(sample).size();
    return with > without ? static_cast<int64_t>(with - without) : 0;
  }

  std::vector<int32_t> Encode(const eval::Sample& sample) const {
    if (chat_prompt_ == nullptr || !sample.chat_template) {
      return tokenizer_->Encode(sample.input + sample.answer_prefix,
                                {.add_special_tokens = true, .parse_special = false});
    }
    auto ids = chat_prompt_->Encode({{"user", sample.input}});
    const auto prefix = tokenizer_->Encode(sample.answer_prefix,
                                           {.add_special_tokens = false, .parse_special = false});
    ids.insert(ids.end(), prefix.begin(), prefix.end());
    return ids;
  }

  void Begin(eval::Journal* journal) {
    context_.info.suite = suite_;
    context_.info.model = flags_.model;
    context_.info.fingerprint = model::Fingerprint(directory_);
    context_.info.dtype = flags_.options.dtype;
    context_.info.chat = chat_prompt_ != nullptr;
    context_.info.description = eval::CheckConfigurations(
        context_, *std::max_element(suite_options_.lengths.begin(), suite_options_.lengths.end()));
    journal->Begin(context_.info, context_.configurations, context_.options);
  }

  void Note(const std::string& line) const {
    if (quiet_) return;
    // Overwrites the progress bar, which is drawn again below.
    std::fputs(((isatty(STDERR_FILENO) ? "\r\033[K" : "") + line + "\n").c_str(), stderr);
    std::fflush(stderr);
  }

  int End(bool interrupted, int64_t failed) const {
    if (interrupted) {
      const std::string how = json_.empty() ? "with --json FILE it could go on from here"
                                            : "the same command goes on where it stopped";
      std::fputs(fmt::format("interrupted; {}\n", how).c_str(), stderr);
      return kInterrupted;
    }
    if (failed == 0) return kOk;
    std::fputs(fmt::format("error: {} samples failed; the same command tries them again\n", failed)
                   .c_str(),
               stderr);
    return kFailure;
  }

  EngineFlags flags_;
  eval::SuiteOptions suite_options_;
  eval::RunContext context_;
  std::string suite_;
  std::string policies_ = "full,litecache";
  std::string retrievers_;
  std::string budgets_;
  std::vector<std::string> named_;
  std::string lengths_;
  std::string tasks_ = "all";
  int64_t count_ = 0;
  std::string haystack_;
  std::string pieces_ = "auto";
  bool chat_ = false;
  std::string chat_template_;
  std::string text_;
  int64_t decode_tokens_ = 512;
  std::string json_;
  bool restart_ = false;
  std::filesystem::path directory_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  std::unique_ptr<ChatPrompt> chat_prompt_;
};

}  // namespace

std::unique_ptr<Command> MakeEvalRunCommand() { return std::make_unique<EvalRunCommand>(); }

}  // namespace litecache::cli
