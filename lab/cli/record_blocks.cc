// litecache-lab record-blocks: records which blocks of rows sparse prefill keeps of a prompt.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/progress.h"
#include "base/units.h"
#include "cli/exit_codes.h"
#include "cli/input.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/profile_inputs.h"
#include "device/machine.h"
#include "engine/engine_plan.h"
#include "io/hub.h"
#include "lab/blocks/block_recorder.h"
#include "lab/cli/commands.h"
#include "model/fingerprint.h"
#include "tokenizer/tokenizer.h"

namespace litecache::lab {
namespace {

class RecordBlocksCommand final : public cli::Command {
 public:
  std::string Name() const override { return "record-blocks"; }
  std::string Summary() const override {
    return "Record which rows sparse prefill attends, for `bench --prompt-blocks`.";
  }
  std::string Notes() const override {
    return "The first tokens of a text run through the model as a prompt, and the blocks of rows "
           "that the queries of each head keep are written.";
  }
  std::vector<std::string> Examples() const override {
    return {"litecache-lab record-blocks --model DIR --text book.txt --context 32k -o book.blocks"};
  }

  void Declare(CLI::App& app) override {
    flags_.DeclareModel(app, true);
    flags_.DeclareSome(app, {"device", "threads", "dtype"});
    app.add_option("--text", text_, "The prompt")->type_name("FILE")->required();
    context_.value = ParseTokens("32k", "--context");
    app.add_option("--context", context_, "Its first tokens are taken, this many at most")
        ->type_name("TOKENS")
        ->default_str("32k");
    app.add_option("--prefill-mass", mass_,
                   "The share of the estimated attention that the blocks have together")
        ->type_name("X")
        ->check(CLI::Range(0.01, 0.9999).description(""))
        ->capture_default_str();
    app.add_option("-o,--output", output_, "File to write")->type_name("FILE")->required();
  }

  int Run(const std::vector<std::string>&) override {
    const std::filesystem::path directory = io::ResolveModel(flags_.model);
    std::vector<int32_t> tokens =
        tokenizer::Tokenizer::FromModel(directory)->Encode(cli::ReadInput(text_));
    const Machine machine = OpenMachine(flags_.options.device, flags_.options.threads);
    Device& device = machine.compute();
    const auto stream = device.CreateStream();
    const auto decoder =
        model::LoadDecoder(device, directory, engine::WeightOptions(flags_.options));
    const int64_t most = std::min(context_.value, decoder->config().max_context);
    if (std::ssize(tokens) > most) tokens.resize(static_cast<size_t>(most));
    BlockPatterns patterns;
    {
      ProgressBar bar("Recording", std::ssize(tokens), "tokens");
      patterns = RecordBlocks(device, *stream, *decoder, tokens, mass_,
                              [&](int64_t done) { bar.Update(done); });
    }
    patterns.model = std::filesystem::canonical(directory).filename().string();
    patterns.fingerprint = model::Fingerprint(directory);
    patterns.text = std::filesystem::path(text_).filename().string();
    patterns.created = cli::Today();
    patterns.Save(output_);
    cli::Output output;
    if (!quiet_) output.Write(fmt::format("{}\nwritten: {}\n", patterns.Describe(), output_));
    output.Flush();
    return cli::kOk;
  }

 private:
  cli::EngineFlags flags_;
  std::string text_;
  cli::TokenCount context_;
  double mass_ = KvOptions().prefill_mass;
  std::string output_;
};

}  // namespace

std::unique_ptr<cli::Command> MakeRecordBlocksCommand() {
  return std::make_unique<RecordBlocksCommand>();
}

}  // namespace litecache::lab
