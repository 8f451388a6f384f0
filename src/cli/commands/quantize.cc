// litecache quantize: writes a Hugging Face directory with quantized weights.
#include <fmt/core.h>

#include <exception>
#include <filesystem>
#include <optional>

#include "base/join.h"
#include "base/progress.h"
#include "base/units.h"
#include "cli/command.h"
#include "cli/exit_codes.h"
#include "cli/interrupt.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/output.h"
#include "io/hub.h"
#include "model/quantize_directory.h"

namespace litecache::cli {
namespace {

class Interrupted : public std::exception {};

class QuantizeCommand final : public Command {
 public:
  std::string Name() const override { return "quantize"; }
  std::string Summary() const override {
    return "Write a Hugging Face directory with quantized weights.";
  }
  std::string Notes() const override {
    return "The directory has the format of compressed-tensors (pack-quantized, float-quantized), "
           "which vLLM and Transformers read, too; activations are not quantized. --type gives "
           "modules types of their own: w4a16,down_proj=w8a16,v_proj=none. Embeddings, norms, "
           "experts' routers, the rates of recurrent layers, and what is no linear layer stay as "
           "they are; so does lm_head unless it has a type of its own, lm_head=w8a16. Matrices of "
           "w4a16 and w8a16 stay, too, whose rows do not divide into groups of 32. In memory fp8 "
           "and w8a16 become Q8_0, w4a16 Q4_0.";
  }
  std::vector<std::string> Examples() const override {
    return {"litecache quantize --model DIR --output NEWDIR --type w4a16"};
  }

  void Declare(CLI::App& app) override {
    flags_.DeclareModel(app, true);
    flags_.DeclareSome(app, {"threads"});
    app.add_option("-o,--output", output_, "Directory to write; it must not exist, or be empty")
        ->type_name("DIR")
        ->required();
    app.add_option(
           "--type", options_.types,
           "w4a16 or w8a16 (integers, a scale for a group of columns) or fp8 (E4M3, a scale "
           "for a row), with exceptions: w4a16,lm_head=w8a16,v_proj=none")
        ->type_name("TYPE")
        ->required();
    app.add_option("--group-size", options_.group_size,
                   "Columns that share a scale; halved where they do not divide a matrix's")
        ->type_name("N")
        ->check(CLI::IsMember({32, 64, 128}).description("32, 64, 128"))
        ->capture_default_str();
    app.add_flag("!--no-scale-search", options_.search_scales,
                 "Take scales from the largest magnitudes, not those of the least squared error");
    app.add_option("--file-size", file_size_, "The most bytes of a file of weights")
        ->type_name("SIZE")
        ->default_str("4GiB");
    app.add_flag("--json", json_, "Print the summary as JSON");
  }

  int Run(const std::vector<std::string>&) override {
    if (file_size_.value > 0) options_.file_bytes = file_size_.value;
    const std::filesystem::path model = io::ResolveModel(flags_.model);
    ThreadPool pool(flags_.options.threads);
    const InterruptScope interrupt(/*terminated=*/true);
    std::optional<ProgressBar> bar;
    model::QuantizedDirectory result;
    try {
      result = model::QuantizeDirectory(model, output_, options_, pool,
                                        [&](int64_t done, int64_t total) {
                                          if (interrupt.Interrupted()) throw Interrupted();
                                          if (!bar) bar.emplace("Quantizing", total, "B");
                                          bar->Update(done);
                                        });
    } catch (const Interrupted&) {
      bar.reset();
      fmt::print(stderr, "interrupted: {} is not written\n", output_);
      return interrupt.ExitCode();
    }
    bar.reset();
    Report(result);
    return kOk;
  }

 private:
  static double BitsOf(uint64_t bytes, uint64_t weights) {
    return weights == 0 ? 0 : 8 * static_cast<double>(bytes) / static_cast<double>(weights);
  }

  std::string Text(const model::QuantizedDirectory& result) const {
    std::string text;
    for (const model::QuantizedKind& kind : result.kinds) {
      text += fmt::format(
          "{:<8}{}: {} matrices, {:.2f} bits per weight, relative error {:.2f}%\n", kind.type,
          kind.group == 0 ? "a scale for each row" : fmt::format("groups of {}", kind.group),
          kind.matrices, BitsOf(kind.bytes, kind.weights), 100 * kind.relative_error());
    }
    std::vector<std::string> kept;
    for (const model::KeptKind& kind : result.kept) {
      kept.push_back(fmt::format("{} {}", FormatBytes(kind.bytes), kind.name));
    }
    if (!kept.empty()) text += fmt::format("as before: {}\n", Join(kept));
    text += fmt::format("weights: {} were {}, {:.2f} bits per weight in all\n",
                        FormatBytes(result.bytes), FormatBytes(result.bytes_before),
                        BitsOf(result.bytes, result.weights));
    return text + fmt::format("written: {}\n", output_);
  }

  nlohmann::ordered_json JsonOf(const model::QuantizedDirectory& result) const {
    nlohmann::ordered_json json = {{"directory", output_},
                                   {"files", result.files},
                                   {"bytes_before", result.bytes_before},
                                   {"bytes", result.bytes},
                                   {"bits_per_weight", BitsOf(result.bytes, result.weights)}};
    for (const model::QuantizedKind& kind : result.kinds) {
      json["quantized"].push_back({{"type", kind.type},
                                   {"group_size", kind.group},
                                   {"matrices", kind.matrices},
                                   {"bytes", kind.bytes},
                                   {"bits_per_weight", BitsOf(kind.bytes, kind.weights)},
                                   {"relative_error", kind.relative_error()}});
    }
    for (const model::KeptKind& kind : result.kept) {
      json["kept"].push_back(
          {{"module", kind.name}, {"tensors", kind.tensors}, {"bytes", kind.bytes}});
    }
    return json;
  }

  void Report(const model::QuantizedDirectory& result) const {
    Output output;
    if (json_) {
      output.Write(ToJsonLine(JsonOf(result)) + "\n");
    } else if (!quiet_) {
      output.Write(Text(result));
    }
    output.Flush();
  }

  EngineFlags flags_;
  model::DirectoryOptions options_;
  std::string output_;
  ByteCount file_size_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeQuantizeCommand() { return std::make_unique<QuantizeCommand>(); }

}  // namespace litecache::cli
