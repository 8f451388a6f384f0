// litecache quantize: writes a Hugging Face directory or a GGUF file with quantized weights.
#include <fmt/core.h>

#include <exception>
#include <filesystem>
#include <functional>
#include <optional>

#include "base/error.h"
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
#include "model/quantize_gguf.h"
#include "tokenizer/gguf_tokenizer_writer.h"

namespace litecache::cli {
namespace {

class Interrupted : public std::exception {};

class QuantizeCommand final : public Command {
 public:
  std::string Name() const override { return "quantize"; }
  std::string Summary() const override {
    return "Write a Hugging Face directory or a GGUF file with quantized weights.";
  }
  std::string Notes() const override {
    return "A directory has the format of compressed-tensors (pack-quantized, float-quantized), "
           "which vLLM and Transformers read, too; activations are not quantized. --type gives "
           "modules types of their own: w4a16,down_proj=w8a16,v_proj=none. Embeddings, norms, "
           "experts' routers, the rates of recurrent layers, and what is no linear layer stay as "
           "they are; so does lm_head unless it has a type of its own, lm_head=w8a16. Matrices of "
           "w4a16 and w8a16 stay, too, whose rows do not divide into groups of 32. In memory fp8 "
           "and w8a16 become Q8_0, w4a16 Q4_0. An --output that ends in .gguf is one file for "
           "llama.cpp and LiteCache, with weights in blocks: --type q4_k or another type of "
           "--quantize. Dense models of Llama, Mistral, Qwen2 and Qwen3 are written so.";
  }
  std::vector<std::string> Examples() const override {
    return {"litecache quantize --model DIR --output NEWDIR --type w4a16",
            "litecache quantize --model DIR --output NEW.gguf --type q4_k"};
  }

  void Declare(CLI::App& app) override {
    flags_.DeclareModel(app, true);
    flags_.DeclareSome(app, {"threads"});
    app.add_option("-o,--output", output_,
                   "Directory to write, which must not exist or be empty; or a new file NAME.gguf")
        ->type_name("PATH")
        ->required();
    app.add_option(
           "--type", options_.types,
           "w4a16 or w8a16 (integers, a scale for a group of columns) or fp8 (E4M3, a scale "
           "for a row); of a GGUF file q4_k, q8_0, ...; with exceptions: "
           "w4a16,lm_head=w8a16,v_proj=none")
        ->type_name("TYPE")
        ->required();
    auto* group =
        app.add_option("--group-size", options_.group_size,
                       "Columns that share a scale; halved where they do not divide a matrix's")
            ->type_name("N")
            ->check(CLI::IsMember({32, 64, 128}).description("32, 64, 128"))
            ->capture_default_str();
    auto* scales = app.add_flag(
        "!--no-scale-search", options_.search_scales,
        "Take scales from the largest magnitudes, not those of the least squared error");
    auto* size = app.add_option("--file-size", file_size_, "The most bytes of a file of weights")
                     ->type_name("SIZE")
                     ->default_str("4GiB");
    of_directories_ = {group, scales, size};
    app.add_flag("--json", json_, "Print the summary as JSON");
  }

  int Run(const std::vector<std::string>&) override {
    for (const CLI::Option* option : of_directories_) {
      if (!gguf() || option->count() == 0) continue;
      throw InvalidArgument("{} is of directories; {} is a GGUF file", option->get_name(), output_);
    }
    if (file_size_.value > 0) options_.file_bytes = file_size_.value;
    const std::filesystem::path model = io::ResolveModel(flags_.model);
    ThreadPool pool(flags_.options.threads);
    const InterruptScope interrupt(/*terminated=*/true);
    std::optional<ProgressBar> bar;
    model::QuantizedModel result;
    const auto progress = [&](int64_t done, int64_t total) {
      if (interrupt.Interrupted()) throw Interrupted();
      if (!bar) bar.emplace("Quantizing", total, "B");
      bar->Update(done);
    };
    try {
      result = gguf() ? QuantizeToGguf(model, pool, progress)
                      : model::QuantizeDirectory(model, output_, options_, pool, progress);
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
  bool gguf() const { return std::filesystem::path(output_).extension() == ".gguf"; }

  model::QuantizedModel QuantizeToGguf(
      const std::filesystem::path& model, ThreadPool& pool,
      const std::function<void(int64_t done, int64_t total)>& progress) const {
    model::GgufOptions options{.types = options_.types};
    options.add_tokenizer = [&](const model::ModelConfig& config,
                                const std::vector<int32_t>& eos_ids, io::GgufMetadata* metadata) {
      tokenizer::AddGgufTokenizer(model, config.vocab, config.bos_id, eos_ids, metadata);
    };
    options.check_tokenizer = [&](const std::filesystem::path& file) {
      tokenizer::CheckGgufTokenizer(io::Gguf(file), model);
    };
    return model::QuantizeGguf(model, output_, options, pool, progress);
  }

  // Of a row's scale, or a group's; a block of GGUF may have scales for parts of it.
  std::string ScalesOf(const model::QuantizedKind& kind) const {
    if (gguf()) return fmt::format("blocks of {}", kind.group);
    return kind.group == 0 ? "a scale for each row" : fmt::format("groups of {}", kind.group);
  }

  static double BitsOf(uint64_t bytes, uint64_t weights) {
    return weights == 0 ? 0 : 8 * static_cast<double>(bytes) / static_cast<double>(weights);
  }

  std::string Text(const model::QuantizedModel& result) const {
    std::string text;
    for (const model::QuantizedKind& kind : result.kinds) {
      text += fmt::format("{:<8}{}: {} matrices, {:.2f} bits per weight, relative error {:.2f}%\n",
                          kind.type, ScalesOf(kind), kind.matrices,
                          BitsOf(kind.bytes, kind.weights), 100 * kind.relative_error());
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

  nlohmann::ordered_json JsonOf(const model::QuantizedModel& result) const {
    nlohmann::ordered_json json = {{gguf() ? "file" : "directory", output_},
                                   {"files", result.files},
                                   {"bytes_before", result.bytes_before},
                                   {"bytes", result.bytes},
                                   {"bits_per_weight", BitsOf(result.bytes, result.weights)}};
    for (const model::QuantizedKind& kind : result.kinds) {
      json["quantized"].push_back({{"type", kind.type},
                                   {gguf() ? "block_size" : "group_size", kind.group},
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

  void Report(const model::QuantizedModel& result) const {
    Output output;
    if (json_) {
      output.Write(ToJsonLine(JsonOf(result)) + "\n");
    } else if (!quiet_) {
      output.Write(Text(result));
    }
    output.Flush();
  }

  EngineFlags flags_;
  std::vector<const CLI::Option*> of_directories_;
  model::DirectoryOptions options_;
  std::string output_;
  ByteCount file_size_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeQuantizeCommand() { return std::make_unique<QuantizeCommand>(); }

}  // namespace litecache::cli
