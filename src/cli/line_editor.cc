#include "cli/line_editor.h"

#include <fmt/core.h>
#include <langinfo.h>
#include <poll.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/logging.h"
#include "cli/interrupt.h"
#include "tokenizer/utf8.h"

namespace litecache::cli {
namespace {

// Between these a terminal sends what is pasted, when it was asked to ("bracketed paste").
constexpr std::string_view kPasteBegins = "\x1b[200~";
constexpr std::string_view kPasteEnds = "\x1b[201~";
constexpr const char* kAskForBrackets = "\x1b[?2004h";
constexpr const char* kNoBrackets = "\x1b[?2004l";
// A paste up to this long and of one line appears as if it had been typed.
constexpr size_t kShortPaste = 200;
constexpr int kHistoryLines = 1000;
// A key's sequence arrives at once; the Escape key alone has nothing behind it.
constexpr int kSequenceMilliseconds = 50;

std::atomic<bool> resized{false};
std::atomic<bool> continued{false};

extern "C" void OnTerminalSignal(int signal) { (signal == SIGWINCH ? resized : continued) = true; }

void Handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);  // no SA_RESTART: reading has to notice
}

// libedit reads and shows characters of the locale.
void UseUtf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

// Terminals send a carriage return for the end of a pasted line.
std::string WithNewlines(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    result += text[i] == '\r' ? '\n' : text[i];
  }
  return result;
}

bool IsShort(std::string_view text) {
  return text.size() <= kShortPaste &&
         std::ranges::none_of(text, [](unsigned char c) { return c < 0x20 || c == 0x7F; });
}

}  // namespace

std::filesystem::path DefaultHistory() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path folder;
  if (state != nullptr && *state == '/') {
    folder = state;
  } else if (home != nullptr && *home == '/') {
    folder = std::filesystem::path(home) / ".local/state";
  } else {
    return {};
  }
  return folder / "litecache/chat-history";
}

std::unique_ptr<LineEditor> LineEditor::OnTerminal(std::filesystem::path history) {
  const char* type = std::getenv("TERM");
  const char* terminal = ttyname(STDIN_FILENO);
  if (terminal == nullptr || type == nullptr || *type == '\0' || std::strcmp(type, "dumb") == 0) {
    return nullptr;
  }
  // Standard output has the answers, and standard error may be a file.
  FILE* out = std::fopen(terminal, "we");
  if (out == nullptr) return nullptr;
  return std::unique_ptr<LineEditor>(new LineEditor(out, std::move(history)));
}

LineEditor::LineEditor(FILE* out, std::filesystem::path history)
    : out_(out), history_file_(std::move(history)) {
  UseUtf8();
  RestoreTerminalOnInterrupt(fileno(out_), kNoBrackets);
  Handle(SIGWINCH, OnTerminalSignal);
  Handle(SIGCONT, OnTerminalSignal);

  editor_ = el_init("litecache", stdin, out_, stderr);
  LC_CHECK(editor_ != nullptr);
  el_set(editor_, EL_CLIENTDATA, this);
  el_set(
      editor_, EL_PROMPT, +[](EditLine* editor) {
        LineEditor* self = nullptr;
        el_get(editor, EL_CLIENTDATA, &self);
        return self->prompt_.data();
      });
  el_set(
      editor_, EL_GETCFN, +[](EditLine* editor, wchar_t* character) {
        LineEditor* self = nullptr;
        el_get(editor, EL_CLIENTDATA, &self);
        return self->Read(character);
      });
  // -d: while a line is edited; -x: while the model answers, where lines would be cut as well.
  el_set(editor_, EL_SETTY, "-d", "-inlcr", "-icrnl", nullptr);
  el_set(editor_, EL_SETTY, "-x", "-inlcr", "-icrnl", "-icanon", "-echo", nullptr);
  el_set(editor_, EL_EDITOR, "emacs");
  el_set(editor_, EL_ADDFN, "complete-file", "Complete the name of a file", _el_fn_complete);
  el_set(editor_, EL_BIND, "\t", "complete-file", nullptr);
  el_set(editor_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  el_source(editor_, nullptr);  // ~/.editrc

  history_ = history_init();
  HistEvent event;
  ::history(history_, &event, H_SETSIZE, kHistoryLines);
  ::history(history_, &event, H_SETUNIQUE, 1);
  // A device such as /dev/null keeps nothing. Reading one might never end, and libedit would make
  // it the user's alone when it writes.
  std::error_code error;
  if (std::filesystem::is_other(history_file_, error)) history_file_.clear();
  if (!history_file_.empty()) ::history(history_, &event, H_LOAD, history_file_.c_str());
  el_set(editor_, EL_HIST, ::history, history_);
  std::fputs(kAskForBrackets, out_);
}

LineEditor::~LineEditor() {
  SaveHistory();
  history_end(history_);
  el_end(editor_);  // restores the terminal
  std::fputs(kNoBrackets, out_);
  RestoreTerminalOnInterrupt(-1, "");
  std::fclose(out_);
  Handle(SIGWINCH, SIG_DFL);
  Handle(SIGCONT, SIG_DFL);
}

bool LineEditor::Next(const std::string& prompt, std::string* line, bool* interrupted) {
  prompt_ = prompt;
  interrupted_ = false;
  int size = 0;
  const char* text = el_gets(editor_, &size);
  *interrupted = interrupted_;
  if (text == nullptr || interrupted_) return false;
  *line = std::string(text, static_cast<size_t>(size));
  if (line->ends_with('\n') || line->ends_with('\r')) line->pop_back();
  HistEvent event;
  if (!line->empty()) ::history(history_, &event, H_ENTER, line->c_str());
  return true;
}

std::string LineEditor::Expand(std::string line) const {
  for (const Paste& paste : pastes_) {
    for (size_t at = 0; (at = line.find(paste.label, at)) != std::string::npos;
         at += paste.text.size()) {
      line.replace(at, paste.label.size(), paste.text);
    }
  }
  return line;
}

int LineEditor::Read(wchar_t* character) {
  if (input_.empty() && !ReadMore()) return interrupted_ ? -1 : 0;
  while (input_.size() < kPasteBegins.size() && kPasteBegins.starts_with(input_)) {
    pollfd terminal{STDIN_FILENO, POLLIN, 0};
    if (poll(&terminal, 1, kSequenceMilliseconds) <= 0) break;
    if (!ReadMore()) return interrupted_ ? -1 : 0;
  }
  if (input_.starts_with(kPasteBegins)) {
    if (!TakePaste()) return interrupted_ ? -1 : 0;
    return Read(character);
  }
  const size_t wanted = tokenizer::SequenceLength(static_cast<unsigned char>(input_[0]));
  while (input_.size() < wanted) {
    if (!ReadMore()) return interrupted_ ? -1 : 0;
  }
  const bool valid = tokenizer::IsValidUtf8(std::string_view(input_).substr(0, wanted));
  size_t used = 0;
  *character = static_cast<wchar_t>(valid ? tokenizer::NextCodePoint(input_, &used) : 0xFFFD);
  input_.erase(0, valid ? used : 1);
  return 1;
}

// Waits for bytes from the terminal. False at the end and at Ctrl-C.
bool LineEditor::ReadMore() {
  char chunk[4096];
  while (true) {
    const ssize_t count = read(STDIN_FILENO, chunk, sizeof chunk);
    if (count > 0) {
      input_.append(chunk, static_cast<size_t>(count));
      return true;
    }
    if (count == 0 || errno != EINTR) return false;
    if (resized.exchange(false)) {
      el_resize(editor_);
    } else if (continued.exchange(false)) {
      // The shell has set the terminal for itself meanwhile.
      el_set(editor_, EL_PREP_TERM, 0);
      el_set(editor_, EL_PREP_TERM, 1);
      el_set(editor_, EL_REFRESH);
    } else {
      interrupted_ = true;
      input_.clear();
      return false;
    }
  }
}

// Takes a paste off the input and puts what the line shows of it in its place.
bool LineEditor::TakePaste() {
  size_t searched = 0;
  size_t end = 0;
  while ((end = input_.find(kPasteEnds, searched)) == std::string::npos) {
    searched = input_.size() - std::min(input_.size(), kPasteEnds.size());
    if (!ReadMore()) return false;
  }
  std::string text = tokenizer::RepairUtf8(WithNewlines(
      std::string_view(input_).substr(kPasteBegins.size(), end - kPasteBegins.size())));
  input_.erase(0, end + kPasteEnds.size());
  if (text.ends_with('\n') && IsShort(std::string_view(text).substr(0, text.size() - 1))) {
    text.pop_back();
  }
  if (!IsShort(text)) {
    const auto lines = std::ranges::count(text, '\n') + (text.ends_with('\n') ? 0 : 1);
    pastes_.push_back({fmt::format("[paste {}: {} line{}, {} bytes]", pastes_.size() + 1, lines,
                                   lines == 1 ? "" : "s", text.size()),
                       text});
    text = pastes_.back().label;
  }
  input_.insert(0, text);
  return true;
}

// Without the lines with pastes, whose text the file does not have.
void LineEditor::SaveHistory() {
  if (history_file_.empty()) return;
  HistEvent event;
  for (int found = ::history(history_, &event, H_FIRST); found >= 0;) {
    const std::string line = event.str;
    const int number = event.num;
    found = ::history(history_, &event, H_NEXT);
    const bool has_paste = std::ranges::any_of(
        pastes_, [&](const Paste& paste) { return line.find(paste.label) != std::string::npos; });
    HistEvent removed;
    if (has_paste) ::history(history_, &removed, H_DEL, number);
  }
  std::error_code error;
  std::filesystem::create_directories(history_file_.parent_path(), error);
  if (::history(history_, &event, H_SAVE, history_file_.c_str()) < 0) {
    LogWarning("{}: cannot write the history: {}", history_file_.string(), event.str);
  }
}

}  // namespace litecache::cli
