// litecache tokenize: text to token ids.
#include <fmt/core.h>

#include <iterator>

#include "cli/command.h"
#include "cli/exit_codes.h"
#include "cli/input.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/output.h"
#include "io/hub.h"
#include "tokenizer/tokenizer.h"

namespace litecache::cli {
namespace {

class TokenizeCommand final : public Command {
 public:
  std::string Name() const override { return "tokenize"; }
  std::string Summary() const override { return "Token ids of a text."; }
  std::string Words() const override { return "[TEXT]"; }
  std::string Notes() const override {
    return "Without TEXT the text is read from standard input, byte by byte: a newline at its "
           "end is part of it. Ids are printed separated by spaces; with --json as {\"ids\": "
           "[...]}.";
  }
  std::vector<std::string> Examples() const override {
    return {"printf 'Hello' | litecache tokenize --model DIR --json"};
  }

  void Declare(CLI::App& app) override {
    flags_.DeclareModel(app, true);
    app.add_flag("--json", json_, "Print {\"ids\": [...]}");
    app.add_flag("--no-special", no_special_,
                 "Add no special tokens, such as the one that begins a text");
    app.add_flag("--plain", plain_, "Special tokens written out in the text are ordinary text");
    app.add_flag("--lines", lines_, "Treat each line of the input as a separate text");
  }

  int Run(const std::vector<std::string>& words) override {
    if (words.size() > 1) {
      throw UsageError("{} texts were given, and tokenize takes one: quote it", words.size());
    }
    const auto tokenizer = tokenizer::Tokenizer::FromModel(io::ResolveModel(flags_.model));
    const std::string text = words.empty() ? ReadStandardInput() : words[0];
    Output output;
    if (!lines_) {
      Print(*tokenizer, text, output);
    } else {
      for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        Print(*tokenizer, std::string_view(text).substr(at, end - at), output);
        at = end + 1;
      }
    }
    output.Flush();
    return kOk;
  }

 private:
  void Print(const tokenizer::Tokenizer& tokenizer, std::string_view text, Output& output) const {
    const auto ids =
        tokenizer.Encode(text, {.add_special_tokens = !no_special_, .parse_special = !plain_});
    std::string line = json_ ? "{\"ids\":[" : "";
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) line += json_ ? ',' : ' ';
      line += std::to_string(ids[i]);
    }
    output.Write(line + (json_ ? "]}\n" : "\n"));
  }

  EngineFlags flags_;
  bool json_ = false;
  bool no_special_ = false;
  bool plain_ = false;
  bool lines_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeTokenizeCommand() { return std::make_unique<TokenizeCommand>(); }

}  // namespace litecache::cli
