// litecache detokenize: token ids to text.
#include <unistd.h>

#include <algorithm>

#include "cli/command.h"
#include "cli/exit_codes.h"
#include "cli/input.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/output.h"
#include "io/hub.h"
#include "model/config.h"
#include "tokenizer/tokenizer.h"

namespace litecache::cli {
namespace {

class DetokenizeCommand final : public Command {
 public:
  std::string Name() const override { return "detokenize"; }
  std::string Summary() const override { return "Text of token ids."; }
  std::string Words() const override { return "[ID...]"; }
  std::string Notes() const override {
    return "Without IDs they are read from standard input: numbers separated by white space or "
           "commas, or JSON as `tokenize --json` and `generate --json` print it. The text is "
           "printed as it is, without a newline of its own; with --json as {\"text\": "
           "\"...\"}.";
  }
  std::vector<std::string> Examples() const override {
    return {"litecache detokenize --model DIR 791 6864 315"};
  }

  void Declare(CLI::App& app) override {
    flags_.DeclareModel(app, true);
    app.add_flag("--json", json_, "Print {\"text\": \"...\"}");
    app.add_flag("--no-special", no_special_, "Leave special tokens out of the text");
  }

  int Run(const std::vector<std::string>& words) override {
    std::string given;
    for (const auto& word : words) given += word + " ";
    const auto ids = words.empty() ? ParseTokenIds(ReadStandardInput(), "standard input")
                                   : ParseTokenIds(given, "arguments");
    const auto directory = io::ResolveModel(flags_.model);
    const auto tokenizer = tokenizer::Tokenizer::FromModel(directory);
    // Models pad their vocabulary, so they can generate ids that have no text.
    const int64_t size =
        std::max<int64_t>(tokenizer->vocab_size(), model::ModelConfig::FromModel(directory).vocab);
    for (const int32_t id : ids) {
      if (id >= size) {
        throw InvalidArgument("token id {} is out of range: the vocabulary ends at {}", id,
                              size - 1);
      }
    }
    const std::string text = tokenizer->Decode(ids, no_special_);
    Output output;
    if (json_) {
      output.Write(ToJsonLine({{"text", text}}) + "\n");
    } else {
      output.Write(text);
      if (isatty(STDOUT_FILENO) && !text.ends_with('\n')) output.Write("\n");
    }
    output.Flush();
    return kOk;
  }

 private:
  EngineFlags flags_;
  bool json_ = false;
  bool no_special_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeDetokenizeCommand() { return std::make_unique<DetokenizeCommand>(); }

}  // namespace litecache::cli
