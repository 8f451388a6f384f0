// Messages typed at a terminal: line editing, history, and pastes of any length (libedit).
#pragma once

#include <histedit.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace litecache::cli {

// Where a chat's messages are kept for the next one: XDG_STATE_HOME/litecache/chat-history, else
// ~/.local/state/litecache/chat-history; empty without either variable.
std::filesystem::path DefaultHistory();

// One at a time. The terminal takes input byte by byte as long as it exists: in lines, it would
// drop what goes beyond 4,095 bytes.
class LineEditor {
 public:
  // Null where standard input is no terminal, or one that cannot be edited on (TERM is unset or
  // "dumb"). history: file that earlier lines are read from, and written to at the end; "": none.
  static std::unique_ptr<LineEditor> OnTerminal(std::filesystem::path history);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // The next line without its newline. Returns false at the end of the input, and at Ctrl-C
  // (*interrupted is set). A paste of several lines, or a long one, stands in the line as a label,
  // "[paste 1: 3 lines, 20000 bytes]", which can be deleted.
  bool Next(const std::string& prompt, std::string* line, bool* interrupted);

  // `line` with the pastes in place of their labels.
  std::string Expand(std::string line) const;

 private:
  struct Paste {
    std::string label;
    std::string text;
  };

  LineEditor(FILE* out, std::filesystem::path history);
  // What libedit calls for a character: 1, 0 at the end, -1 where a signal came.
  int Read(wchar_t* character);
  bool ReadMore();
  bool TakePaste();
  void SaveHistory();

  FILE* out_;  // the terminal
  std::filesystem::path history_file_;
  EditLine* editor_ = nullptr;
  History* history_ = nullptr;
  std::string prompt_;
  std::string input_;  // bytes from the terminal that no character was made of yet
  std::vector<Paste> pastes_;
  bool interrupted_ = false;
};

}  // namespace litecache::cli
