// Runs the built program like a user: arguments, standard input, signals; collects its output and
// its exit code.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace litecache::testing {

// Of a command line.
using Words = std::vector<std::string>;
inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct ProgramResult {
  int exit_code = -1;  // 128 + signal when a signal ended it
  std::string out;
  std::string err;
};

struct ProgramOptions {
  // Standard input: this text, or, with `keep_open`, the data sent with Write() until Finish().
  std::string input;
  bool keep_open = false;
  // Standard input is a terminal (of type xterm, 80 by 24); "\x03" sent to it is Ctrl-C.
  bool terminal = false;
  // Standard output goes to this file instead of being collected.
  std::string output_file;
  // Standard output is closed (`>&-`).
  bool closed_output = false;
  std::vector<std::string> environment;  // "NAME=value", added to the test's own
};

class Program {
 public:
  Program(const std::vector<std::string>& arguments, const ProgramOptions& options);
  ~Program();  // kills the program if it still runs
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  void Write(const std::string& text);
  void Signal(int signal);
  void CloseInput();
  void CloseOutput();
  // Waits until standard output (or error) contains `text`; returns false after the time limit or
  // when the program ends.
  bool WaitForOutput(const std::string& text);
  bool WaitForError(const std::string& text);
  // Waits until the program has written `text` to its terminal.
  bool WaitForTerminal(const std::string& text);
  // Waits until standard output has `bytes` bytes.
  bool WaitForBytes(size_t bytes);
  // All output read so far.
  const std::string& out() const { return result_.out; }
  const std::string& err() const { return result_.err; }
  const std::string& shown() const { return shown_; }
  // Forgets what the terminal has shown so far.
  void ClearShown() { shown_.clear(); }
  // Whether the terminal echoes and takes lines, as shells leave it.
  bool TerminalIsAsBefore() const;
  // Closes the input and waits for the end. After the time limit the program is killed (exit code
  // 137).
  ProgramResult Finish();

 private:
  bool Pump(int milliseconds);
  bool WaitUntil(const std::function<bool()>& condition);

  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
  int error_ = -1;
  std::string pending_input_;
  bool close_when_written_ = false;
  bool terminal_ = false;
  bool terminal_open_ = false;  // the program has not closed it
  std::string shown_;
  ProgramResult result_;
};

// Runs a program from start to finish.
ProgramResult RunProgram(const std::vector<std::string>& arguments,
                         const ProgramOptions& options = {});

}  // namespace litecache::testing
