// litecache profile: measures a model for the KV policies.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <optional>
#include <sstream>

#include "base/join.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/exit_codes.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/profile_report.h"
#include "device/cpu/cpu_device.h"
#include "engine/kv_profile.h"
#include "eval/ruler/data.h"
#include "eval/ruler/run.h"
#include "eval/ruler/tokens.h"
#include "io/file.h"
#include "io/hub.h"
#include "lab/trace/trace_recorder.h"
#include "model/fingerprint.h"
#include "profile/corpus.h"
#include "profile/plot_data.h"
#include "profile/profiler.h"

namespace litecache::cli {
namespace {

constexpr const char* kTableName = "head_importance.tsv";
// Tokens of a trace's text: its file stays below 300 KB for a model of a dozen KV heads.
constexpr int64_t kTraceContext = 4096;

std::string Today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

class ProfileCommand final : public Command {
 public:
  std::string Name() const override { return "profile"; }
  std::string Summary() const override {
    return "Measure a model on your texts for the KV policy litecache.";
  }
  std::string Notes() const override {
    return "Reads windows of the texts and writes one file, which generate, chat and bench find "
           "by\n"
           "itself in the model's directory: how fast each head's queries turn, the reuse "
           "threshold\n"
           "that keeps a wanted share of the attention, HATA's trained hash weights, Loki's "
           "bases,\n"
           "head importance, and the machine's speed. Texts like those the model will read give "
           "the\n"
           "best thresholds. --corpus takes files, directories (all text files below), and .jsonl\n"
           "files (field text, or input and outputs as `eval generate` writes them).\n\n"
           "  litecache profile --model DIR --corpus ~/notes --plots plots.json\n";
  }

  void Declare(CLI::App& app) override {
    flags_.DeclareModel(app, true);
    flags_.DeclareThreads(app);
    AddRepeated(app, "--corpus", corpus_,
                "Texts to measure on, each path equally; default: source code and long-context "
                "questions that come "
                "with the program")
        ->type_name("PATH");
    app.add_option("-o,--output", output_,
                   "File to write; default: litecache-profile.safetensors in the model's directory")
        ->type_name("FILE");
    app.add_option("--budget", budget_, "Rows a head keeps: a share of the context, or a number")
        ->type_name("SHARE")
        ->capture_default_str();
    app.add_option("--context", context_, "Tokens of a window at most")
        ->type_name("TOKENS")
        ->default_str("16k");
    app.add_option("--windows", windows_,
                   "Windows to read; a quarter of them is held out from training")
        ->type_name("N")
        ->check(CLI::Range(1, 4096).description(""))
        ->capture_default_str();
    app.add_option("--steps", options_.steps,
                   "Tokens at a window's end that are taken as decode steps")
        ->type_name("N")
        ->check(CLI::Range(2, 1 << 16).description(""))
        ->capture_default_str();
    app.add_option("--hata-bits", hata_bits_, "Hash widths to train, comma-separated; none: none")
        ->type_name("LIST")
        ->capture_default_str();
    app.add_option("--hata-iterations", options_.hata.iterations,
                   "Training steps of a head's weights")
        ->type_name("N")
        ->check(CLI::Range(1, 1 << 20).description(""))
        ->capture_default_str();
    app.add_option("--importance", importance_,
                   "Table of head importance: a row a layer, a column a KV or query head; default: "
                   "head_importance.tsv in the model's directory where it exists; none: 1 for all")
        ->type_name("TSV");
    app.add_option("--keep", report_.keep,
                   "Share of the attention mass that the summary's thresholds keep")
        ->type_name("SHARE")
        ->check(CLI::Range(0.0, 1.0).description(""))
        ->capture_default_str();
    app.add_option("--plots", plots_,
                   "Write what tools/plot_profile.py draws pictures of to this file, as JSON")
        ->type_name("FILE");
    app.add_option("-s,--seed", options_.seed, "Seed")->type_name("N")->capture_default_str();
    app.add_option(
           "--only", only_,
           "Arrays to measure anew, comma-separated: hata, loki, skew; the rest of the file "
           "that is there stays")
        ->type_name("LIST");
    app.add_option("--record", record_,
                   "Write no profile but a trace: what the last steps of the texts' last window "
                   "look for, for `bench --trace` [4k tokens, 48 steps unless said]")
        ->type_name("FILE");
    app.add_flag("--json", json_, "Print the summary as JSON");
    app_ = &app;
  }

  int Run(const std::vector<std::string>&) override {
    options_.curves.budget = KvBudget::Parse(budget_);
    options_.hata_bits = HataBits();
    options_.held_out = windows_ / 4;
    const std::filesystem::path directory = io::ResolveModelDirectory(flags_.model);
    if (output_.empty()) output_ = (directory / engine::kProfileName).string();
    const auto tokenizer = tokenizer::Tokenizer::FromDirectory(directory);
    if (!record_.empty()) {
      if (app_->count("--context") == 0) context_.value = kTraceContext;
      if (app_->count("--steps") == 0) options_.steps = profile::TraceOptions().steps;
    }
    CpuDevice device(flags_.threads);
    const auto stream = device.CreateStream();
    const auto decoder = model::LoadDecoder(device, directory, {});
    const int64_t context = std::min(context_.value, decoder->config().max_context);
    options_.importance = Importance(directory, *decoder);
    const std::string fingerprint = model::Fingerprint(directory);
    std::optional<kv::Profile> rest;
    if (!only_.empty()) rest = Rest(*decoder, fingerprint);

    std::string corpus;
    const auto windows = Windows(tokenizer, context, &corpus);

    if (!record_.empty()) {
      return Record(device, *stream, *decoder, windows.back(), directory, fingerprint, corpus);
    }

    profile::ProfilerResult result;
    {
      constexpr int64_t kParts = 1000;
      ProgressBar bar("Profiling", kParts, "per mille");
      result = profile::MeasureProfile(device, *stream, *decoder, windows, options_,
                                       [&](double share, const std::string&) {
                                         bar.Update(static_cast<int64_t>(share * kParts));
                                       });
    }
    result.profile.fingerprint = fingerprint;
    result.profile.corpus = corpus;
    result.profile.created = Today();
    (rest ? Merged(*std::move(rest), result.profile) : result.profile).Save(output_);
    if (!plots_.empty()) {
      io::WriteFileAtomically(plots_, profile::PlotData(result, report_.keep).dump() + "\n");
    }
    Report(result);
    return kOk;
  }

 private:
  std::vector<int64_t> HataBits() const {
    std::vector<int64_t> bits;
    if (hata_bits_ == "none") return bits;
    for (const std::string& word : CLI::detail::split(hata_bits_, ',')) {
      if (word != "128" && word != "256") {
        throw UsageError("--hata-bits: '{}' is neither 128 nor 256", word);
      }
      bits.push_back(std::stol(word));
    }
    return bits;
  }

  int Record(Device& device, Stream& stream, model::Decoder& decoder,
             const std::vector<int32_t>& window, const std::filesystem::path& directory,
             const std::string& fingerprint, const std::string& corpus) const {
    profile::TraceOptions options;
    options.steps = options_.steps;
    options.budget = options_.curves.budget.share;
    if (options_.curves.budget.tokens > 0) {
      options.budget =
          static_cast<double>(options_.curves.budget.tokens) / static_cast<double>(window.size());
    }
    options.importance = options_.importance;
    kv::Trace trace;
    {
      ProgressBar bar("Recording", static_cast<int64_t>(window.size()), "tokens");
      trace = profile::RecordTrace(device, stream, decoder, window, options,
                                   [&](int64_t done) { bar.Update(done); });
    }
    trace.model = std::filesystem::canonical(directory).filename().string();
    trace.fingerprint = fingerprint;
    trace.text = corpus_.empty() ? corpus : TextNames();
    trace.created = Today();
    trace.Save(record_);
    Output output;
    if (!quiet_) output.Write(fmt::format("{}\nwritten: {}\n", trace.Describe(), record_));
    output.Flush();
    return kOk;
  }

  // Files' names, not where they lie.
  std::string TextNames() const {
    std::vector<std::string> names;
    for (const std::string& path : corpus_) {
      names.push_back(std::filesystem::path(path).filename().string());
    }
    return Join(names);
  }

  bool Only(const std::string& array) const {
    const auto words = CLI::detail::split(only_, ',');
    return std::find(words.begin(), words.end(), array) != words.end();
  }

  // The file that --only leaves the rest of.
  kv::Profile Rest(const model::Decoder& decoder, const std::string& fingerprint) {
    for (const std::string& word : CLI::detail::split(only_, ',')) {
      if (word != "hata" && word != "loki" && word != "skew") {
        throw UsageError("--only: '{}' is none of hata, loki, skew", word);
      }
    }
    if (!Only("hata")) options_.hata_bits.clear();
    kv::Profile rest = kv::Profile::Load(output_);
    rest.CheckModel(decoder.config().kv_layout(decoder.kv_dtype()), fingerprint, output_);
    return rest;
  }

  kv::Profile Merged(kv::Profile rest, const kv::Profile& measured) const {
    if (Only("hata")) rest.hata = measured.hata;
    if (Only("loki")) rest.loki = measured.loki;
    if (Only("skew")) rest.skew = measured.skew;
    return rest;
  }

  std::vector<float> Importance(const std::filesystem::path& directory,
                                const model::Decoder& decoder) {
    std::filesystem::path table = importance_;
    if (importance_ == "none") return {};
    if (importance_.empty()) {
      table = directory / kTableName;
      std::error_code error;
      if (!std::filesystem::exists(table, error)) return {};
    }
    importance_source_ = table.string();
    return kv::ReadImportanceTable(table, decoder.config().kv_layout(decoder.kv_dtype()));
  }

  // Texts of one kind; each kind gives as many windows as the others.
  using Kinds = std::vector<std::vector<profile::Document>>;

  std::vector<std::vector<int32_t>> Windows(
      const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer, int64_t context,
      std::string* description) const {
    Kinds kinds;
    if (corpus_.empty()) {
      kinds = DefaultTexts(tokenizer, context, description);
    } else {
      for (const std::string& path : corpus_) kinds.push_back(profile::ReadDocuments(path));
      *description = Join(corpus_);
    }
    // Below that a window would be decode steps and little else.
    const int64_t least = std::min(context, 2 * options_.steps + 256);
    const auto share =
        (windows_ + static_cast<int64_t>(kinds.size()) - 1) / static_cast<int64_t>(kinds.size());
    std::vector<std::vector<std::vector<int32_t>>> cut;
    for (const auto& documents : kinds) {
      cut.push_back(profile::CutWindows(documents, *tokenizer, context, share, least));
    }
    // In turn, so that the windows held out are of all kinds.
    std::vector<std::vector<int32_t>> windows;
    for (size_t i = 0; i < static_cast<size_t>(share); ++i) {
      for (auto& kind : cut) {
        if (i < kind.size()) windows.push_back(std::move(kind[i]));
      }
    }
    return windows;
  }

  // Half code, half retrieval documents with questions and answers at their end.
  Kinds DefaultTexts(const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer, int64_t context,
                     std::string* description) const {
    const int64_t questions = std::max<int64_t>(1, windows_ / 2);
    eval::BulkOptions bulk;
    bulk.tasks = eval::ParseTaskWeights("all");
    bulk.min_length = bulk.max_length = context;
    bulk.max_questions = 16;
    bulk.seed = options_.seed;
    std::ostringstream lines;
    eval::RunBulk(bulk, 0, questions, flags_.threads, eval::CountTokens(tokenizer), lines,
                  [](const eval::TrainingDocument& document) {
                    return nlohmann::json{{"text", document.text}}.dump() + "\n";
                  });
    *description =
        fmt::format("{} retrieval documents of the train split (seed {}), Python modules",
                    questions, options_.seed);
    return {profile::ParseLines(lines.str(), "retrieval"),
            {{"code", std::string(eval::data::Haystack())}}};
  }

  void Report(const profile::ProfilerResult& result) const {
    Output output;
    if (json_) {
      auto json = ProfileJson(result, report_);
      json["file"] = output_;
      output.Write(ToJsonLine(json) + "\n");
    } else if (!quiet_) {
      output.Write(ProfileText(result, report_));
      output.Write(importance_source_.empty()
                       ? "importance: no table, 1 for every head\n"
                       : fmt::format("importance: {}\n", importance_source_));
      output.Write(fmt::format("written: {}\n", output_));
    }
    output.Flush();
  }

  EngineFlags flags_;
  profile::ProfilerOptions options_;
  ProfileReportOptions report_;
  std::vector<std::string> corpus_;
  std::string output_;
  std::string budget_ = "10%";
  TokenCount context_{16384};
  int64_t windows_ = 8;
  std::string hata_bits_ = "128,256";
  std::string importance_;
  std::string importance_source_;
  std::string plots_;
  std::string only_;
  std::string record_;
  const CLI::App* app_ = nullptr;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeProfileCommand() { return std::make_unique<ProfileCommand>(); }

}  // namespace litecache::cli
