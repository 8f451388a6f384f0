// litecache profile: measures a model for the KV policies.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/progress.h"
#include "cli/command.h"
#include "cli/exit_codes.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/profile_inputs.h"
#include "cli/profile_report.h"
#include "device/cpu/cpu_device.h"
#include "engine/kv_profile.h"
#include "io/file.h"
#include "io/hub.h"
#include "model/fingerprint.h"
#include "profile/plot_data.h"
#include "profile/profiler.h"

namespace litecache::cli {
namespace {

class ProfileCommand final : public Command {
 public:
  std::string Name() const override { return "profile"; }
  std::string Summary() const override {
    return "Measure a model on your texts for the KV policy litecache.";
  }
  std::string Notes() const override {
    return "The command reads windows of the texts and writes one file, which the other "
           "commands find in the model's directory: how fast each head's queries turn, the "
           "reuse thresholds, HATA's trained hash weights, Loki's bases, the importance of "
           "heads, and the machine's speed. Texts like those that the model will read give the "
           "best thresholds. --corpus takes files, directories (all text files below them) and "
           ".jsonl files (the field text, or input and outputs as `eval generate` writes "
           "them).";
  }
  std::vector<std::string> Examples() const override {
    return {"litecache profile --model DIR --corpus ~/notes --plots plots.json"};
  }

  void Declare(CLI::App& app) override {
    flags_.DeclareModel(app, true);
    flags_.DeclareSome(app, {"threads"});
    inputs_.Declare(app, "16k");
    app.add_option(
           "-o,--output", output_,
           "File to write; default: litecache-profile.safetensors in the model's directory, "
           "NAME.litecache-profile.safetensors beside NAME.gguf")
        ->type_name("FILE");
    app.add_option("--steps", options_.steps,
                   "Tokens at a window's end that are taken as decode steps")
        ->type_name("N")
        ->check(CLI::Range(2, 1 << 16).description(""))
        ->capture_default_str();
    app.add_option("--hata-bits", hata_bits_,
                   "Hash widths to train, comma-separated; none: train none")
        ->type_name("LIST")
        ->capture_default_str();
    app.add_option("--hata-iterations", options_.hata.iterations,
                   "Training steps of a head's weights")
        ->type_name("N")
        ->check(CLI::Range(1, 1 << 20).description(""))
        ->capture_default_str();
    app.add_option("--keep", report_.keep,
                   "Share of the attention mass that the summary's thresholds keep")
        ->type_name("SHARE")
        ->check(CLI::Range(0.0, 1.0).description(""))
        ->capture_default_str();
    app.add_option("--plots", plots_,
                   "Write the data that tools/plot_profile.py draws to this file, as JSON")
        ->type_name("FILE");
    app.add_option("--only", only_,
                   "Arrays to measure again, comma-separated: hata, loki, skew; the rest of the "
                   "existing file is kept")
        ->type_name("LIST");
    app.add_flag("--json", json_, "Print the summary as JSON");
  }

  int Run(const std::vector<std::string>&) override {
    options_.curves.budget = KvBudget::Parse(inputs_.budget);
    options_.hata_bits = HataBits();
    options_.held_out = inputs_.windows / 4;
    options_.seed = inputs_.seed;
    const std::filesystem::path directory = io::ResolveModel(flags_.model);
    if (output_.empty()) output_ = engine::ProfilePath(directory).string();
    const auto tokenizer = tokenizer::Tokenizer::FromModel(directory);
    CpuDevice device(flags_.options.threads);
    const auto stream = device.CreateStream();
    const auto decoder = model::LoadDecoder(device, directory, {});
    const ProfileInputs::Importance importance = inputs_.ReadImportance(directory, *decoder);
    options_.importance = importance.heads;
    const std::string fingerprint = model::Fingerprint(directory);
    std::optional<kv::Profile> rest;
    if (!only_.empty()) rest = Rest(*decoder, fingerprint);

    const ProfileInputs::Windows windows = inputs_.Read(tokenizer, decoder->config().max_context,
                                                        options_.steps, flags_.options.threads);
    profile::ProfilerResult result;
    {
      constexpr int64_t kParts = 1000;
      ProgressBar bar("Profiling", kParts, "per mille");
      result = profile::MeasureProfile(device, *stream, *decoder, windows.tokens, options_,
                                       [&](double share, const std::string&) {
                                         bar.Update(static_cast<int64_t>(share * kParts));
                                       });
    }
    result.profile.fingerprint = fingerprint;
    result.profile.corpus = windows.description;
    result.profile.created = Today();
    (rest ? Merged(*std::move(rest), result.profile) : result.profile).Save(output_);
    if (!plots_.empty()) {
      io::WriteFileAtomically(plots_, profile::PlotData(result, report_.keep).dump() + "\n");
    }
    Report(result, importance.source);
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

  bool Only(const std::string& array) const {
    const auto words = CLI::detail::split(only_, ',');
    return std::find(words.begin(), words.end(), array) != words.end();
  }

  // The existing profile that supplies the arrays not named by --only.
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

  void Report(const profile::ProfilerResult& result, const std::string& importance) const {
    Output output;
    if (json_) {
      auto json = ProfileJson(result, report_);
      json["file"] = output_;
      output.Write(ToJsonLine(json) + "\n");
    } else if (!quiet_) {
      output.Write(ProfileText(result, report_));
      output.Write(importance.empty() ? "importance: no table; thresholds are fitted to each head\n"
                                      : fmt::format("importance: {}\n", importance));
      output.Write(fmt::format("written: {}\n", output_));
    }
    output.Flush();
  }

  EngineFlags flags_;
  ProfileInputs inputs_;
  profile::ProfilerOptions options_;
  ProfileReportOptions report_;
  std::string output_;
  std::string hata_bits_ = "128,256";
  std::string plots_;
  std::string only_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeProfileCommand() { return std::make_unique<ProfileCommand>(); }

}  // namespace litecache::cli
