// litecache-lab record: records what a model's decode steps retrieve, as a trace.
#include <fmt/format.h>

#include <filesystem>

#include "base/join.h"
#include "base/progress.h"
#include "cli/exit_codes.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/profile_inputs.h"
#include "device/cpu/cpu_device.h"
#include "io/hub.h"
#include "lab/cli/commands.h"
#include "lab/trace/trace_recorder.h"
#include "model/fingerprint.h"

namespace litecache::lab {
namespace {

class RecordCommand final : public cli::Command {
 public:
  std::string Name() const override { return "record"; }
  std::string Summary() const override {
    return "Record what a model's decode steps look for, for `bench --trace`.";
  }
  std::string Notes() const override {
    return "The last window of the texts runs through the model, and what its last tokens look "
           "for as decode steps is written: similarities of actual and predicted queries, top "
           "rows, ranked clusters.";
  }
  std::vector<std::string> Examples() const override {
    return {"litecache-lab record --model DIR --corpus ~/notes -o notes.trace"};
  }

  void Declare(CLI::App& app) override {
    flags_.DeclareModel(app, true);
    flags_.DeclareSome(app, {"threads"});
    // At 4k tokens a file takes 16 KB for a KV head.
    inputs_.Declare(app, "4k");
    app.add_option("--steps", options_.steps,
                   "Tokens at the window's end that are taken as decode steps")
        ->type_name("N")
        ->check(CLI::Range(2, 1 << 16).description(""))
        ->capture_default_str();
    app.add_option("-o,--output", output_, "File to write")->type_name("FILE")->required();
  }

  int Run(const std::vector<std::string>&) override {
    const KvBudget budget = KvBudget::Parse(inputs_.budget);
    const std::filesystem::path directory = io::ResolveModel(flags_.model);
    const auto tokenizer = tokenizer::Tokenizer::FromModel(directory);
    CpuDevice device(flags_.options.threads);
    const auto stream = device.CreateStream();
    const auto decoder = model::LoadDecoder(device, directory, {});
    options_.importance = inputs_.ReadImportance(directory, *decoder).heads;
    const auto windows = inputs_.Read(tokenizer, decoder->config().max_context, options_.steps,
                                      flags_.options.threads);
    const std::vector<int32_t>& window = windows.tokens.back();
    options_.budget = budget.tokens > 0
                          ? static_cast<double>(budget.tokens) / static_cast<double>(window.size())
                          : budget.share;
    options_.by_need = budget.by_need;
    lab::Trace trace;
    {
      ProgressBar bar("Recording", static_cast<int64_t>(window.size()), "tokens");
      trace = lab::RecordTrace(device, *stream, *decoder, window, options_,
                               [&](int64_t done) { bar.Update(done); });
    }
    trace.model = std::filesystem::canonical(directory).filename().string();
    trace.fingerprint = model::Fingerprint(directory);
    trace.text = inputs_.corpus.empty() ? windows.description : CorpusNames();
    trace.created = cli::Today();
    trace.Save(output_);
    cli::Output output;
    if (!quiet_) output.Write(fmt::format("{}\nwritten: {}\n", trace.Describe(), output_));
    output.Flush();
    return cli::kOk;
  }

 private:
  // The names of the files, without their directories.
  std::string CorpusNames() const {
    std::vector<std::string> names;
    for (const std::string& path : inputs_.corpus) {
      names.push_back(std::filesystem::path(path).filename().string());
    }
    return Join(names);
  }

  cli::EngineFlags flags_;
  cli::ProfileInputs inputs_;
  lab::TraceOptions options_;
  std::string output_;
};

}  // namespace

std::unique_ptr<cli::Command> MakeRecordCommand() { return std::make_unique<RecordCommand>(); }

}  // namespace litecache::lab
