// litecache chat: a conversation on the terminal.
#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/printable.h"
#include "base/progress.h"
#include "cli/answer_text.h"
#include "cli/chat_prompt.h"
#include "cli/collect.h"
#include "cli/command.h"
#include "cli/exit_codes.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/line_editor.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/stats.h"
#include "tokenizer/utf8.h"

namespace litecache::cli {
namespace {

constexpr std::string_view kCommands =
    "/reset           forget the conversation\n"
    "/system [TEXT]   set the system message (without TEXT: remove it), and start over\n"
    "/retry           answer the last message again\n"
    "/file PATH       put a file's text before the next message\n"
    "/stats           numbers of the last answer\n"
    "/help            this list\n"
    "/quit            leave (or Ctrl-D, or Ctrl-C twice)\n"
    "A line that ends with a backslash goes on in the next one; a paste of several lines is one "
    "message. Tab completes file names, the arrow keys and Ctrl-R find earlier lines.\n";

class ChatCommand final : public Command {
 public:
  std::string Name() const override { return "chat"; }
  std::string Summary() const override { return "Talk with a model."; }
  std::string Notes() const override {
    return "Ctrl-C stops the answer, not the program; pressed twice at the prompt, it leaves. "
           "Special "
           "tokens typed into a message are ordinary text. Where standard input is no terminal, "
           "its "
           "lines are the messages. In the conversation:\n\n" +
           std::string(kCommands);
  }
  std::vector<std::string> Examples() const override {
    return {"litecache chat --model DIR --system 'Answer in one sentence.'"};
  }
  std::vector<std::string> CommonOptions() const override {
    return {"--system", "--max-tokens", "--temperature", "--seed"};
  }

  void Declare(CLI::App& app) override {
    flags_.DeclareModel(app, true);
    app.add_option("--system", system_, "System message")->type_name("TEXT");
    app.add_option("--chat-template", template_file_, "Use this template instead of the model's")
        ->type_name("FILE");
    app.add_flag("--show-special", show_special_, "Keep special tokens in the text");
    app.add_option("--history", history_,
                   "At a terminal: keep the lines that are typed in this file; none: in memory "
                   "only; default: litecache/chat-history in XDG_STATE_HOME or ~/.local/state")
        ->type_name("FILE");
    flags_.DeclareRun(app);
    flags_.DeclarePrefix(app, true);
    sampling_.Declare(app, 0);
  }

  int Run(const std::vector<std::string>&) override {
    flags_.WarnOfUnused();
    EngineOptions options = flags_.ToEngineOptions();
    if (options.max_batch == 0) options.max_batch = 1;
    engine_ = Engine::Load(flags_.model, options);
    params_ = sampling_.Merge(engine_->default_sampling(), false);
    const ChatPrompt prompt(*engine_, template_file_);
    interactive_ = isatty(STDIN_FILENO);
    if (interactive_) {
      Note(fmt::format("{}; context of {} tokens. /help lists commands.\n", engine_->Description(),
                       engine_->memory_plan().largest_context));
    }
    if (history_.empty()) history_ = DefaultHistory();
    editor_ = LineEditor::OnTerminal(history_ == "none" ? "" : history_);
    StartOver();
    const InterruptScope interrupt;
    return Loop(prompt, interrupt);
  }

 private:
  int Loop(const ChatPrompt& prompt, const InterruptScope& interrupt) {
    bool warned = false;
    while (true) {
      std::string message;
      bool interrupted = false;
      if (!ReadMessage(&message, &interrupted)) {
        if (!interrupted) {
          if (interactive_) Note("\n");
          return status_;
        }
        if (warned) {
          Note("\n");
          return kInterrupted;
        }
        Note("\n(Ctrl-C again leaves)\n");
        warned = true;
        interrupt.Reset();
        continue;
      }
      warned = false;
      if (message.empty()) continue;
      // What a paste begins with is no command.
      const bool is_command = message[0] == '/';
      if (editor_) message = editor_->Expand(message);
      if (is_command) {
        bool answer = false;
        if (!Obey(message, &answer)) return status_;
        if (!answer) continue;
      } else {
        turns_.push_back({"user", std::exchange(files_, "") + message});
      }
      interrupt.Reset();
      Answer(prompt, interrupt);
      interrupt.Reset();
    }
  }

  // Reads a message; it continues on the next line after a backslash. Pastes are labels in it.
  bool ReadMessage(std::string* message, bool* interrupted) {
    std::string line;
    message->clear();
    while (true) {
      if (!ReadLine(message->empty() ? "> " : ". ", &line, interrupted)) {
        return !*interrupted && !message->empty();
      }
      if (line.ends_with('\r')) line.pop_back();
      if (!line.ends_with('\\')) break;
      line.pop_back();
      *message += line + "\n";
    }
    *message = tokenizer::RepairUtf8(*message + line);
    return true;
  }

  bool ReadLine(const char* prompt, std::string* line, bool* interrupted) {
    if (editor_) return editor_->Next(prompt, line, interrupted);
    if (interactive_) Note(prompt);
    if (!lines_.Next(line, interrupted)) return false;
    // Linux cuts a terminal's lines there.
    constexpr size_t kLongestTerminalLine = 4095;
    if (interactive_ && line->size() >= kLongestTerminalLine) {
      Note(
          "error: the terminal has cut this line at 4,095 bytes, and it is not sent: use /file, or "
          "a terminal that lines can be edited on (TERM is unset or dumb)\n");
      line->clear();
    }
    return true;
  }

  // Carries out a /command; *answer: whether the model is to answer next. Returns false to leave.
  bool Obey(const std::string& line, bool* answer) {
    const size_t space = line.find(' ');
    const std::string command = line.substr(0, space);
    const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (command == "/quit" || command == "/exit") return false;
    if (command == "/reset") {
      StartOver();
      Note("(new conversation)\n");
    } else if (command == "/system") {
      system_ = rest;
      StartOver();
      Note(rest.empty() ? "(no system message; new conversation)\n"
                        : "(system message set; new conversation)\n");
    } else if (command == "/retry") {
      if (!turns_.empty() && turns_.back().role == "assistant") turns_.pop_back();
      if (turns_.empty() || turns_.back().role != "user") {
        Note("(nothing to answer yet)\n");
      } else {
        *answer = true;
      }
    } else if (command == "/file") {
      AddFile(rest);
    } else if (command == "/stats") {
      Note(stats_.empty() ? "(no answer yet)\n" : stats_);
    } else if (command == "/help") {
      Note(std::string(kCommands));
    } else {
      Note(fmt::format("({} is not a command; /help lists them)\n", command));
    }
    return true;
  }

  void AddFile(std::string path) {
    while (path.ends_with(' ')) path.pop_back();
    const char* home = std::getenv("HOME");
    if (path.starts_with("~/") && home != nullptr) path.replace(0, 1, home);
    try {
      if (path.empty() || path == "-") throw UsageError("/file PATH: name a file");
      const std::string text = tokenizer::RepairUtf8(ReadInput(path));
      const auto tokens = engine_->tokenizer().Encode(text, {.add_special_tokens = false}).size();
      const auto context = static_cast<size_t>(engine_->memory_plan().largest_context);
      if (tokens >= context) {
        throw CapacityError("{}: {} tokens do not fit the context of {}", path, tokens, context);
      }
      files_ += fmt::format("{}:\n\n{}{}\n", std::filesystem::path(path).filename().string(), text,
                            text.ends_with('\n') ? "" : "\n");
      Note(fmt::format("({}: {} tokens, which go before the next message)\n", path, tokens));
    } catch (const Error& error) {
      Refuse(error);
    }
  }

  // The conversation goes on; but whoever has no terminal learns of the error at the end as well.
  void Refuse(const Error& error) {
    Note(fmt::format("error: {}\n", Printable(error.what())));
    if (!interactive_) status_ = kFailure;
  }

  void StartOver() {
    turns_.clear();
    files_.clear();
    if (!system_.empty()) turns_.push_back({"system", system_});
  }

  // Answers the conversation. If the model or the engine reports an error, it is shown and the
  // message is withdrawn: the conversation continues.
  void Answer(const ChatPrompt& prompt, const InterruptScope& interrupt) {
    try {
      Generate(prompt, interrupt);
    } catch (const OutputClosed&) {
      throw;
    } catch (const FileError&) {
      throw;
    } catch (const Error& error) {
      Refuse(error);
      if (dynamic_cast<const CapacityError*>(&error) != nullptr) {
        Note("(/reset forgets the conversation)\n");
      }
      if (!turns_.empty() && turns_.back().role == "user") turns_.pop_back();
    }
  }

  void Generate(const ChatPrompt& prompt, const InterruptScope& interrupt) {
    Request request;
    request.prompt = prompt.Encode(turns_);
    request.sampling = params_;
    request.max_tokens = sampling_.max_tokens ? sampling_.max_tokens->value : 0;
    const bool harmony = prompt.harmony();
    request.skip_special_tokens = !show_special_ && !harmony;
    sampling_.ApplyStops(&request);
    const auto total = static_cast<int64_t>(request.prompt.size());
    const auto done = std::make_shared<std::atomic<int64_t>>(0);
    request.on_prefill = [done](int64_t value, int64_t) { *done = value; };
    ProgressBar bar("Prefill", total, "tokens");
    const auto start = std::chrono::steady_clock::now();
    const auto handle = engine_->Submit(std::move(request));
    Output output;
    MemoryUse memory;
    memory.kv.plan = engine_->memory_plan();
    bool ends_line = false;
    AnswerText answer(harmony, isatty(STDOUT_FILENO) != 0);
    const auto write = [&](const std::string& text) {
      output.Write(text);
      output.Flush();
      if (!text.empty()) ends_line = text.ends_with('\n');
    };
    const auto result = Collect(
        *handle, 1,
        [&](int, const std::string& text) {
          bar.Finish();
          const std::string said = answer.Add(text);
          write(show_special_ ? text : said);
        },
        [&] {
          if (interrupt.Interrupted()) handle->Cancel();
          if (done->load() < total) bar.Update(done->load());
        });
    bar.Finish();
    const std::string rest = answer.Finish();
    if (!show_special_) write(rest);
    if (!ends_line) output.Write("\n");
    output.Flush();
    // A stopped answer stays part of the conversation.
    turns_.push_back({"assistant", answer.answer()});
    memory.kv.stats = engine_->Stats();
    memory.peak_bytes = PeakMemory();
    stats_ = litecache::cli::Summary(
        {result}, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
        memory);
    if (result.samples[0].finish == FinishReason::kCancelled) Note("(stopped)\n");
    if (result.samples[0].finish == FinishReason::kLength) {
      Note(sampling_.max_tokens && sampling_.max_tokens->value > 0
               ? "(cut at --max-tokens)\n"
               : "(the context is full: /reset starts over)\n");
    }
  }

  // Program messages go to standard error.
  static void Note(const std::string& text) {
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
  }

  EngineFlags flags_;
  SamplingFlags sampling_;
  std::string system_;
  std::string template_file_;
  std::string history_;
  bool show_special_ = false;

  std::unique_ptr<Engine> engine_;
  SamplingParams params_;
  std::unique_ptr<LineEditor> editor_;  // null where messages are plain lines
  LineReader lines_;
  std::string files_;  // of /file, for the next message
  std::vector<ChatTurn> turns_;
  std::string stats_;
  bool interactive_ = false;
  int status_ = kOk;  // what the program ends with
};

}  // namespace

std::unique_ptr<Command> MakeChatCommand() { return std::make_unique<ChatCommand>(); }

}  // namespace litecache::cli
