// litecache generate: continue prompts.
#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <optional>

#include "base/progress.h"
#include "cli/answer_text.h"
#include "cli/chat_prompt.h"
#include "cli/collect.h"
#include "cli/command.h"
#include "cli/exit_codes.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/prompts.h"
#include "cli/stats.h"
#include "grammar/grammar_cache.h"
#include "io/json_parser.h"
#include "litecache/token_constraint.h"
#include "server/api/harmony.h"
#include "tokenizer/tokenizer.h"

namespace litecache::cli {
namespace {

constexpr int64_t kDefaultMaxTokens = 128;

class GenerateCommand final : public Command {
 public:
  std::string Name() const override { return "generate"; }
  std::string Summary() const override { return "Continue one prompt, or several together."; }
  std::string Words() const override { return "[PROMPT...]"; }
  std::string Notes() const override {
    return "Prompts are the arguments (- reads standard input), then the files of "
           "--prompt-file, then those of --prompt-tokens-file; without any of these, standard "
           "input. Several prompts are generated together and printed in order, each under its "
           "label. Put -- before a prompt that begins with a dash.\n"
           "The text is printed as it is generated, and the summary follows on standard error. "
           "With --json one object {\"tokens\", \"text\", \"stats\"} is printed instead; for "
           "several prompts or samples, one object a line, with \"prompt\" and \"sample\" "
           "(both count from 0). Ctrl-C ends the generation, prints what there is and the "
           "summary, and exits with 130.";
  }
  std::vector<std::string> Examples() const override {
    return {"litecache generate --model DIR 'The capital of France is'",
            "litecache generate --model DIR --chat --prompt-file question.txt -n 500 --temp "
            "0.7"};
  }
  std::vector<std::string> CommonOptions() const override {
    return {"--prompt-file", "--chat",       "--system",      "--samples", "--json",
            "--json-schema", "--max-tokens", "--temperature", "--seed"};
  }

  void Declare(CLI::App& app) override {
    flags_.DeclareModel(app, true);
    AddRepeated(app, "-f,--prompt-file", files_,
                "Read a prompt from this file, unchanged; - reads standard input; can be given "
                "several times")
        ->type_name("FILE");
    AddRepeated(app, "--prompt-tokens-file", token_files_,
                "Prompt as token ids separated by white space; can be given several times")
        ->type_name("FILE");
    app.add_flag("--no-special", no_special_,
                 "Add no special tokens to the prompts, such as the one that begins a text");
    app.add_flag("--chat", chat_, "Wrap every prompt in the model's chat template");
    app.add_option("--system", system_, "System message for --chat")->type_name("TEXT");
    app.add_option("--chat-template", template_file_, "Use this template instead of the model's")
        ->type_name("FILE");
    app.add_option("--samples", samples_, "Samples of every prompt")
        ->type_name("N")
        ->check(CLI::Range(1, 4096).description(""))
        ->capture_default_str();
    app.add_option("--logprobs", logprobs_,
                   "With --json: log-probabilities of the tokens and of the K most likely ones")
        ->type_name("K")
        ->check(CLI::Range(0, 1 << 20).description(""));
    app.add_flag("--show-special", show_special_, "Keep special tokens in the text");
    app.add_flag("--json", json_, "Print JSON");
    app.add_option("--json-schema", schema_file_,
                   "Answers are JSON that this schema allows; - reads standard input")
        ->type_name("FILE");
    app.add_flag("--json-object", json_object_, "Answers are JSON objects");
    flags_.DeclareRun(app);
    flags_.DeclarePrefix(app, false);
    sampling_.Declare(app, kDefaultMaxTokens);
  }

  int Run(const std::vector<std::string>& words) override {
    if (logprobs_ >= 0 && !json_) throw UsageError("--logprobs: works with --json only");
    if (!chat_ && (!system_.empty() || !template_file_.empty())) {
      throw UsageError("--system and --chat-template work with --chat only");
    }
    if (json_object_ && !schema_file_.empty()) {
      throw UsageError("--json-object and --json-schema exclude each other");
    }
    if (schema_file_.starts_with('{')) {
      throw UsageError(
          "--json-schema names a file with the schema, or - for standard input; '{}' is the schema "
          "itself",
          schema_file_);
    }
    const std::string schema = schema_file_.empty() ? "" : ReadInput(schema_file_);
    prompts_ = CollectPrompts(words, files_, token_files_);
    flags_.WarnOfUnused();
    EngineOptions options = flags_.ToEngineOptions();
    // Buffers for more texts than this one would take the memory of its rows.
    const bool single = prompts_.size() == 1 && samples_ == 1;
    if (single && options.max_batch == 0) options.max_batch = 1;
    engine_ = Engine::Load(flags_.model, options);
    if (chat_) chat_prompt_.emplace(*engine_, template_file_);
    SetConstraint(schema);
    Submit();
    return Print();
  }

 private:
  std::vector<int32_t> Encode(const Prompt& prompt) {
    if (prompt.is_ids) {
      if (chat_) throw UsageError("--chat cannot be combined with --prompt-tokens-file");
      return prompt.ids;
    }
    if (!chat_) {
      return engine_->tokenizer().Encode(prompt.text, {.add_special_tokens = !no_special_});
    }
    std::vector<ChatTurn> turns;
    if (!system_.empty()) turns.push_back({"system", system_});
    turns.push_back({"user", prompt.text});
    return chat_prompt_->Encode(turns);
  }

  void SetConstraint(const std::string& schema) {
    if (schema_file_.empty() && !json_object_) return;
    grammar::GrammarCache grammars(engine_->tokenizer());
    constraint_ = json_object_ ? grammars.OfObject() : Compile(schema, &grammars);
    if (harmony()) {
      constraint_ = server::ConstrainHarmony(constraint_, std::string(server::kHarmonyPrompt),
                                             false, engine_->tokenizer(), &grammars);
    }
  }

  std::shared_ptr<const TokenConstraint> Compile(const std::string& schema,
                                                 grammar::GrammarCache* grammars) const {
    try {
      auto limits = io::JsonLimits::OfRequest();
      return grammars->OfSchema(io::ParseLimitedJson<grammar::Json>(schema, &limits));
    } catch (const io::JsonError& error) {
      throw FileError("{}: not a JSON schema: {}", schema_file_, error.what());
    } catch (const Unsupported& error) {
      throw Unsupported("{}: {}", schema_file_, error.what());
    } catch (const InvalidArgument& error) {
      throw FileError("{}: {}", schema_file_, error.what());
    }
  }

  // Whether answers are in the format of gpt-oss.
  bool harmony() const { return chat_prompt_ && chat_prompt_->harmony(); }

  int64_t MaxTokens(size_t prompt_tokens) const {
    if (sampling_.max_tokens) return sampling_.max_tokens->value;
    // The default length must not make a prompt too long.
    const int64_t left =
        engine_->memory_plan().largest_context - static_cast<int64_t>(prompt_tokens);
    return std::clamp(left, int64_t{1}, kDefaultMaxTokens);
  }

  void Submit() {
    const SamplingParams sampling = sampling_.Merge(engine_->default_sampling(), samples_ > 1);
    std::vector<Request> requests;
    for (size_t i = 0; i < prompts_.size(); ++i) {
      Request request;
      request.prompt = Encode(prompts_[i]);
      if (request.prompt.empty()) {
        throw InvalidArgument(
            "the prompt{} is empty, and this model adds no token that begins a "
            "text: give it at least one token",
            prompts_.size() > 1 ? fmt::format(" '{}'", prompts_[i].label) : "");
      }
      request.sampling = sampling;
      request.max_tokens = MaxTokens(request.prompt.size());
      request.n = samples_;
      request.logprobs = logprobs_;
      request.skip_special_tokens = !show_special_ && !harmony();
      request.constraint = constraint_;
      sampling_.ApplyStops(&request);
      prompt_tokens_ += static_cast<int64_t>(request.prompt.size());
      auto done = std::make_shared<std::atomic<int64_t>>(0);
      request.on_prefill = [done](int64_t value, int64_t) { *done = value; };
      prefilled_.push_back(std::move(done));
      requests.push_back(std::move(request));
    }
    start_ = std::chrono::steady_clock::now();
    for (auto& request : requests) handles_.push_back(engine_->Submit(std::move(request)));
  }

  // Called while waiting for tokens.
  void Watch(const InterruptScope& interrupt, ProgressBar& bar) {
    if (interrupt.Interrupted()) {
      for (auto& handle : handles_) handle->Cancel();
    }
    int64_t done = 0;
    for (const auto& prompt : prefilled_) done += prompt->load();
    if (done < prompt_tokens_) {
      bar.Update(done);
    } else {
      bar.Finish();
    }
  }

  int Print() {
    const InterruptScope interrupt;
    memory_.kv.plan = engine_->memory_plan();
    // With fewer than some hundred tokens a bar would only flicker.
    ProgressBar bar("Prefill", prompt_tokens_, "tokens");
    Output output;
    std::vector<RequestResult> results;
    for (size_t i = 0; i < handles_.size(); ++i) {
      bool ends_line = true;
      bool started = false;
      AnswerText answer(harmony(), isatty(STDOUT_FILENO) != 0);
      const auto write = [&](const std::string& text) {
        if (json_ || text.empty()) return;
        bar.Finish();
        if (!started) PrintLabel(i, 0, output);
        started = true;
        output.Write(text);
        output.Flush();
        ends_line = text.ends_with('\n');
      };
      results.push_back(Collect(
          *handles_[i], samples_,
          [&](int sample, const std::string& text) {
            if (sample == 0) write(show_special_ ? text : answer.Add(text));
          },
          [&] { Watch(interrupt, bar); }));
      if (!show_special_) write(answer.Finish());
      if (harmony() && !show_special_) LeaveOutThoughts(&results.back());
      bar.Finish();
      memory_.kv.stats = engine_->Stats();
      if (json_) {
        PrintJson(i, results.back(), output);
      } else {
        if (!started) PrintLabel(i, 0, output);
        if (!ends_line || !started) output.Write("\n");
        for (int sample = 1; sample < samples_; ++sample) {
          PrintLabel(i, sample, output);
          const auto& text = results.back().samples[static_cast<size_t>(sample)].text;
          output.Write(text.ends_with('\n') ? text : text + "\n");
        }
      }
      output.Flush();
    }
    output.Flush();
    if (!json_ && !quiet_) {
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
      memory_.peak_bytes = PeakMemory();
      std::fputs(("\n" + litecache::cli::Summary(results, seconds, memory_) + Cut(results)).c_str(),
                 stderr);
    }
    return interrupt.Interrupted() ? kInterrupted : kOk;
  }

  static void LeaveOutThoughts(RequestResult* result) {
    for (SampleResult& sample : result->samples) {
      AnswerText answer(true, false);
      answer.Add(sample.text);
      answer.Finish();
      sample.text = answer.answer();
    }
  }

  // Says how many answers --max-tokens has cut; "" where it cut none.
  std::string Cut(const std::vector<RequestResult>& results) const {
    const int64_t limit = sampling_.max_tokens ? sampling_.max_tokens->value : kDefaultMaxTokens;
    int64_t cut = 0, all = 0;
    for (const RequestResult& result : results) {
      // The others end with the context.
      const bool limited = MaxTokens(static_cast<size_t>(result.stats.prompt_tokens)) == limit;
      for (const SampleResult& sample : result.samples) {
        ++all;
        if (limited && limit > 0 && sample.finish == FinishReason::kLength) ++cut;
      }
    }
    if (cut == 0) return "";
    return fmt::format("{} cut at --max-tokens {}; with 0 there is no such limit\n",
                       all == 1 ? "the answer was" : fmt::format("{} of {} answers were", cut, all),
                       limit);
  }

  void PrintLabel(size_t prompt, int sample, Output& output) const {
    if (prompts_.size() == 1 && samples_ == 1) return;
    std::string label = fmt::format("==> {}", prompts_[prompt].label);
    if (samples_ > 1) label += fmt::format(" (sample {} of {})", sample + 1, samples_);
    output.Write((prompt + static_cast<size_t>(sample) > 0 ? "\n" : "") + label + " <==\n");
  }

  void PrintJson(size_t prompt, const RequestResult& result, Output& output) {
    memory_.peak_bytes = PeakMemory();
    for (size_t i = 0; i < result.samples.size(); ++i) {
      const SampleResult& sample = result.samples[i];
      nlohmann::ordered_json object;
      if (prompts_.size() > 1 || samples_ > 1) {
        object["prompt"] = prompt;
        object["sample"] = i;
      }
      object["tokens"] = sample.tokens;
      object["text"] = sample.text;
      if (logprobs_ >= 0) object["logprobs"] = Logprobs(sample);
      object["stats"] = StatsJson(result, sample, memory_);
      output.Write(ToJsonLine(object) + "\n");
    }
  }

  static nlohmann::ordered_json Logprobs(const SampleResult& sample) {
    auto list = nlohmann::ordered_json::array();
    for (size_t i = 0; i < sample.logprobs.size(); ++i) {
      auto top = nlohmann::ordered_json::array();
      for (const auto& entry : sample.top_logprobs[i]) {
        top.push_back({{"token", entry.token}, {"logprob", entry.logprob}});
      }
      list.push_back({{"token", sample.logprobs[i].token},
                      {"logprob", sample.logprobs[i].logprob},
                      {"top", std::move(top)}});
    }
    return list;
  }

  EngineFlags flags_;
  SamplingFlags sampling_;
  std::vector<std::string> files_;
  std::vector<std::string> token_files_;
  std::string system_;
  std::string template_file_;
  std::string schema_file_;
  int samples_ = 1;
  int logprobs_ = -1;
  bool no_special_ = false;
  bool chat_ = false;
  bool show_special_ = false;
  bool json_ = false;
  bool json_object_ = false;

  std::vector<Prompt> prompts_;
  std::unique_ptr<Engine> engine_;
  std::optional<ChatPrompt> chat_prompt_;
  std::shared_ptr<const TokenConstraint> constraint_;
  std::vector<std::shared_ptr<RequestHandle>> handles_;
  std::vector<std::shared_ptr<std::atomic<int64_t>>> prefilled_;
  int64_t prompt_tokens_ = 0;
  std::chrono::steady_clock::time_point start_;
  MemoryUse memory_;
};

}  // namespace

std::unique_ptr<Command> MakeGenerateCommand() { return std::make_unique<GenerateCommand>(); }

}  // namespace litecache::cli
