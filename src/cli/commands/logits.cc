// litecache logits: a model's predictions at the positions of given tokens.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "base/progress.h"
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

constexpr size_t kTop = 5;

class LogitsCommand final : public Command {
 public:
  std::string Name() const override { return "logits"; }
  std::string Summary() const override {
    return "Logits at positions of given tokens, and the tokens' mean negative log-likelihood.";
  }
  std::string Notes() const override {
    return "Position p has the logits for the token that follows tokens 0 to p. --json prints "
           "one object: {\"positions\": [...], \"logits\": [[...], ...], \"nll\": x}, with a "
           "row of vocabulary size for every position; nll is the mean over all tokens but the "
           "first, in nats (null for a single token). Without --json the likeliest tokens are "
           "printed.";
  }
  std::vector<std::string> Examples() const override {
    return {"litecache logits --model DIR --tokens-file ids.txt --positions 0,5,99 --json"};
  }

  void Declare(CLI::App& app) override {
    flags_.DeclareModel(app, true);
    app.add_option("--tokens-file", tokens_file_,
                   "Token ids separated by white space; - reads standard input")
        ->type_name("FILE")
        ->required();
    app.add_option("--positions", positions_,
                   "Comma-separated, from 0 on; negative ones count from the end; all means all")
        ->type_name("LIST")
        ->capture_default_str();
    app.add_flag("--json", json_, "Print JSON");
    flags_.DeclareRun(app);
  }

  int Run(const std::vector<std::string>&) override {
    const auto tokens = ParseTokenIds(ReadInput(tokens_file_), tokens_file_);
    if (tokens.empty()) throw InvalidArgument("{}: holds no token ids", tokens_file_);
    const auto positions = Positions(static_cast<int64_t>(tokens.size()));
    const auto engine = Engine::Load(flags_.model, flags_.ToEngineOptions());
    ScoreResult result;
    {
      ProgressBar bar("Scoring", static_cast<int64_t>(tokens.size()), "tokens");
      result = engine->Score({tokens, positions}, [&](int64_t done, int64_t) { bar.Update(done); });
    }
    Output output;
    if (json_) {
      PrintJson(positions, tokens.size(), result, output);
    } else {
      PrintTop(*engine, positions, tokens.size(), result, output);
    }
    output.Flush();
    return kOk;
  }

 private:
  std::vector<int64_t> Positions(int64_t count) const {
    std::vector<int64_t> positions;
    if (positions_ == "all") {
      positions.resize(static_cast<size_t>(count));
      std::iota(positions.begin(), positions.end(), 0);
      return positions;
    }
    for (const auto& word : CLI::detail::split(positions_, ',')) {
      int64_t position = 0;
      const char* end = word.data() + word.size();
      const auto [stop, error] = std::from_chars(word.data(), end, position);
      if (error != std::errc() || stop != end) {
        throw UsageError("--positions: '{}' is not a position; write e.g. 0,5,99 or all", word);
      }
      if (position >= count || position < -count) {
        throw UsageError("--positions: {} is out of range: {} holds {} tokens, positions 0 to {}",
                         position, tokens_file_, count, count - 1);
      }
      positions.push_back(position < 0 ? count + position : position);
    }
    return positions;
  }

  static void PrintJson(const std::vector<int64_t>& positions, size_t tokens,
                        const ScoreResult& result, Output& output) {
    output.Write(fmt::format("{{\"positions\":[{}],\"logits\":[", fmt::join(positions, ",")));
    for (size_t row = 0; row < result.logits.size(); ++row) {
      std::string line = row == 0 ? "[" : ",[";
      for (size_t i = 0; i < result.logits[row].size(); ++i) {
        if (i > 0) line += ',';
        AppendJsonFloat(result.logits[row][i], &line);
      }
      output.Write(line + "]");
    }
    const nlohmann::ordered_json nll =
        tokens > 1 ? nlohmann::ordered_json(result.mean_nll) : nlohmann::ordered_json();
    output.Write("],\"nll\":" + ToJsonLine(nll) + "}\n");
  }

  static void PrintTop(const Engine& engine, const std::vector<int64_t>& positions, size_t tokens,
                       const ScoreResult& result, Output& output) {
    for (size_t row = 0; row < positions.size(); ++row) {
      const auto& logits = result.logits[row];
      std::vector<int32_t> order(logits.size());
      std::iota(order.begin(), order.end(), 0);
      const size_t top = std::min(kTop, order.size());
      std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(top),
                        order.end(), [&](int32_t a, int32_t b) {
                          return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
                        });
      output.Write(fmt::format("position {}\n", positions[row]));
      for (size_t i = 0; i < top; ++i) {
        const int32_t id = order[i];
        output.Write(
            fmt::format("  {:>10.4f}  {:>7}  {}\n", logits[static_cast<size_t>(id)], id,
                        ToJsonLine(engine.tokenizer().Decode(std::vector<int32_t>{id}, false))));
      }
    }
    if (tokens > 1) {
      output.Write(fmt::format("mean NLL {:.6f} over {} tokens (perplexity {:.4f})\n",
                               result.mean_nll, tokens - 1, std::exp(result.mean_nll)));
    }
  }

  EngineFlags flags_;
  std::string tokens_file_;
  std::string positions_ = "-1";
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeLogitsCommand() { return std::make_unique<LogitsCommand>(); }

}  // namespace litecache::cli
