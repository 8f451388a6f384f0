// litecache-lab papers: the papers' figures and tables, measured on this engine.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/exit_codes.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/version.h"
#include "io/hub.h"
#include "lab/cli/commands.h"
#include "lab/papers/suite.h"
#include "model/config.h"

namespace litecache::lab {
namespace {

namespace papers = bench::papers;

std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> words;
  for (auto& word : CLI::detail::split(list, ',')) {
    if (!word.empty()) words.push_back(std::move(word));
  }
  return words;
}

class PapersCommand final : public cli::Command {
 public:
  std::string Name() const override { return "papers"; }
  std::string Summary() const override {
    return "Measure what the figures and tables of the LiteCache paper show, on this engine.";
  }
  std::string Notes() const override {
    return "lab/tools/papers_page.py makes a page of what is measured, beside the published "
           "figures. "
           "A run that was stopped continues where it was. --shape or --model, --context and "
           "--batch "
           "replace the papers' own.";
  }
  std::vector<std::string> Examples() const override {
    return {"litecache-lab papers --device cuda --accuracy-model DIR -o results",
            "litecache-lab papers --quick --device cuda --time-limit 100 -o results"};
  }

  void Declare(CLI::App& app) override {
    flags_.DeclareModel(app, false);
    DeclareGrid(app);
    DeclareMachine(app);
    app.add_option("-o,--output", options_.output,
                   "Directory of what is measured; what is there is not measured again")
        ->type_name("DIR")
        ->default_str("papers");
    app.add_option("--time-limit", options_.seconds,
                   "Seconds after which no further measurement begins; 0: only write what the page "
                   "needs to know of the suite")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.0, 1e9).description(""));
    app_ = &app;
  }

  int Run(const std::vector<std::string>&) override {
    const cli::InterruptScope interrupt;
    // Reports an unknown shape before minutes of measuring.
    if (!shape_.empty()) model::ModelConfig::FromShapeName(shape_);
    for (const std::string& model : {flags_.model, accuracy_model_}) {
      if (!model.empty()) io::ResolveModel(model);
    }
    SetGrid();
    SetLab();
    options_.experiments = Split(experiments_);
    options_.version = cli::VersionText().substr(0, cli::VersionText().find('\n'));
    options_.command = CommandText();
    options_.interrupted = [&] { return interrupt.Interrupted(); };
    options_.note = [](const std::string& line) {
      // Overwrites the progress bar, which is drawn again below.
      std::fputs(((isatty(STDERR_FILENO) != 0 ? "\r\033[K" : "") + line + "\n").c_str(), stderr);
      std::fflush(stderr);
    };
    const auto result = papers::RunSuite(options_);
    cli::Output text;
    text.Write(fmt::format("{} measurements: {} new, {} kept, {} skipped, {} left\nwritten: {}\n",
                           result.cells, result.measured, result.kept, result.skipped, result.left,
                           result.folder.string()));
    text.Close();
    return interrupt.Interrupted() ? cli::kInterrupted : cli::kOk;
  }

 private:
  // Options for what is measured.
  void DeclareGrid(CLI::App& app) {
    app.add_option("--shape", shape_,
                   "A published shape with random weights instead of the papers'")
        ->type_name("NAME");
    app.add_flag("--quick", quick_, "Few points of one shape");
    app.add_option("--batch", batches_, "Sequences decoded together, comma-separated")
        ->type_name("LIST");
    app.add_option("--context", contexts_, "Tokens of context, comma-separated, e.g. 512,4k")
        ->type_name("LIST");
    app.add_option("--experiments", experiments_,
                   "Only these, comma-separated: latency, breakdown, throughput, prefill, cache, "
                   "ablation, link, accuracy")
        ->type_name("LIST");
    cli::AddRepeated(
        app, "--system", options_.systems,
        "Measure only this system, named as in the page's tables; can be given several "
        "times")
        ->type_name("NAME");
    app.add_option("--accuracy-model", accuracy_model_, "Checkpoint that accuracy is measured on")
        ->type_name("MODEL");
    app.add_option("--accuracy-count", accuracy_count_, "Samples a task for accuracy")
        ->type_name("N")
        ->check(CLI::Range(1, 100000).description(""));
    app.add_option("--accuracy-context", accuracy_contexts_,
                   "Tokens of the samples for accuracy, comma-separated")
        ->type_name("LIST");
  }

  // Options for how, and on which machine, it is measured.
  void DeclareMachine(CLI::App& app) {
    papers::LabOptions& lab = options_.lab;
    flags_.DeclareSome(app, {"device", "threads", "memory", "device_memory", "host_memory",
                             "prefill_chunk", "max_batch"});
    app.add_option("--steps", lab.decode_steps, "Decode steps timed")
        ->type_name("N")
        ->check(CLI::Range(1, 1 << 20).description(""))
        ->capture_default_str();
    app.add_option("--repeats", lab.prefill_repeats,
                   "Prefills timed, after one that is not; 0: time the first")
        ->type_name("N")
        ->check(CLI::Range(0, 1000).description(""))
        ->capture_default_str();
    app.add_option("--hit-ratio", lab.hit_ratio, "Share of policy litecache's lookups that hit")
        ->type_name("X")
        ->check(CLI::Range(0.0, 1.0).description(""))
        ->capture_default_str();
    app.add_option("--overlap", lab.overlap,
                   "Share of a refreshed head's rows that are on the device already")
        ->type_name("X")
        ->check(CLI::Range(0.0, 1.0).description(""))
        ->capture_default_str();
    app.add_option("--trace", trace_file_,
                   "Play what a real model's steps looked for (`litecache-lab record`) instead of "
                   "--hit-ratio and --overlap")
        ->type_name("FILE");
    app.add_option("-s,--seed", lab.seed, "Seed of weights and tokens")
        ->type_name("N")
        ->capture_default_str();
  }

  void SetGrid() {
    papers::Grid& grid = options_.grid;
    grid = papers::PapersGrid(quick_);
    if (!shape_.empty()) grid.shapes = {shape_};
    if (!flags_.model.empty()) grid.shapes = {flags_.model};
    if (!batches_.empty()) {
      const auto batches = cli::ParseTokenList(batches_, "--batch");
      grid.batches = grid.ablation_batches = batches;
      grid.batches_of.clear();
      grid.forms_batch = *std::max_element(batches.begin(), batches.end());
    }
    if (!contexts_.empty()) {
      const auto contexts = cli::ParseTokenList(contexts_, "--context");
      grid.lengths = grid.prefill_lengths = grid.link_lengths = contexts;
      grid.batch_context = contexts.front();
      grid.accuracy_lengths = {contexts.back()};
    }
    grid.accuracy_model = accuracy_model_;
    if (accuracy_count_ > 0) grid.accuracy_count = accuracy_count_;
    if (!accuracy_contexts_.empty()) {
      grid.accuracy_lengths = cli::ParseTokenList(accuracy_contexts_, "--accuracy-context");
    }
  }

  void SetLab() {
    const papers::Grid& grid = options_.grid;
    papers::LabOptions& lab = options_.lab;
    lab.device = flags_.options.device;
    lab.threads = flags_.options.threads;
    lab.prefill_chunk = flags_.options.prefill_chunk;
    if (flags_.options.max_batch > 0) lab.max_batch = flags_.options.max_batch;
    lab.memory = flags_.options.memory;
    lab.caps = {flags_.options.kv.device_memory, flags_.options.kv.host_memory};
    if (!trace_file_.empty()) {
      if (app_->count("--hit-ratio") + app_->count("--overlap") > 0) {
        throw cli::UsageError("--trace cannot be combined with --hit-ratio and --overlap");
      }
      lab.trace = std::make_shared<const lab::Trace>(lab::Trace::Load(trace_file_));
    }
    lab.accuracy_tasks = grid.accuracy_tasks;
    for (const auto* lengths : {&grid.lengths, &grid.prefill_lengths, &grid.link_lengths}) {
      for (const int64_t length : *lengths) lab.longest = std::max(lab.longest, length);
    }
    lab.longest = std::max(lab.longest, grid.batch_context);
  }

  // The command line that repeats the run, for the page.
  std::string CommandText() const {
    std::string text = "litecache-lab papers";
    if (quick_) text += " --quick";
    text += " --device " + flags_.options.device;
    const auto add = [&](const char* name, const std::string& value) {
      if (app_->count(name) > 0) text += fmt::format(" {} {}", name, value);
    };
    add("--shape", shape_);
    if (!flags_.model.empty()) text += " --model " + flags_.model;
    add("--trace", trace_file_);
    add("--steps", fmt::format("{}", options_.lab.decode_steps));
    add("--accuracy-model", accuracy_model_);
    add("--accuracy-count", fmt::format("{}", accuracy_count_));
    add("--accuracy-context", accuracy_contexts_);
    return text;
  }

  cli::EngineFlags flags_;
  papers::SuiteOptions options_ = Defaults();
  std::string shape_;
  bool quick_ = false;
  std::string batches_, contexts_, experiments_;
  std::string accuracy_model_, accuracy_contexts_;
  int64_t accuracy_count_ = 0;  // 0: that of the papers' grid
  std::string trace_file_;
  const CLI::App* app_ = nullptr;

  static papers::SuiteOptions Defaults() {
    papers::SuiteOptions options;
    options.output = "papers";
    return options;
  }
};

}  // namespace

std::unique_ptr<cli::Command> MakePapersCommand() { return std::make_unique<PapersCommand>(); }

}  // namespace litecache::lab
