#include "cli/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#ifndef LC_PROGRAM
#define LC_PROGRAM "litecache"
#endif

namespace litecache::testing {
namespace {

// Long, because sanitizer builds on a busy machine are slow. Only a program that hangs reaches it.
constexpr std::chrono::seconds kLimit(120);

struct Pipe {
  int read = -1;
  int write = -1;
};

Pipe MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  return {ends[0], ends[1]};
}

// The two sides of a terminal; the program's side is not a controlling terminal so far.
Pipe MakeTerminal() {
  const int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) {
    throw std::runtime_error("no terminal can be made");
  }
  const int slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (slave < 0) throw std::runtime_error("the terminal cannot be opened");
  return {slave, master};
}

void CloseAndForget(int* descriptor) {
  if (*descriptor >= 0) close(std::exchange(*descriptor, -1));
}

// Appends the available data; returns false at the end.
bool ReadSome(int descriptor, std::string* to) {
  char chunk[1 << 16];
  const ssize_t count = read(descriptor, chunk, sizeof chunk);
  if (count > 0) to->append(chunk, static_cast<size_t>(count));
  return count > 0 || (count < 0 && errno == EINTR);
}

}  // namespace

Program::Program(const std::vector<std::string>& arguments, const ProgramOptions& options) {
  signal(SIGPIPE, SIG_IGN);
  const Pipe input = options.terminal ? MakeTerminal() : MakePipe();
  const Pipe output = MakePipe();
  const Pipe error = MakePipe();
  // As for LC_SOURCE_DIR: where the program is, for tests copied to another machine.
  const char* other = std::getenv("LC_BINARY_DIR");
  std::vector<std::string> words = {std::string(other != nullptr ? other : LC_BINARY_DIR) +
                                    "/" LC_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) {
    if (options.terminal) {
      setsid();
      ioctl(input.read, TIOCSCTTY, 0);
      const winsize size{24, 80, 0, 0};
      ioctl(input.read, TIOCSWINSZ, &size);
      setenv("TERM", "xterm", 1);
    }
    int out = output.write;
    if (!options.output_file.empty()) {
      out = open(options.output_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    }
    dup2(input.read, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(error.write, STDERR_FILENO);
    if (options.closed_output) close(STDOUT_FILENO);
    signal(SIGPIPE, SIG_DFL);
    unsetenv("LITECACHE_MODEL");
    for (const auto& variable : options.environment) {
      const size_t equals = variable.find('=');
      setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
    }
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(input.read);
  close(output.write);
  close(error.write);
  input_ = input.write;
  output_ = output.read;
  error_ = error.read;
  fcntl(input_, F_SETFL, O_NONBLOCK);
  pending_input_ = options.input;
  terminal_ = options.terminal;
  terminal_open_ = options.terminal;
  close_when_written_ = !options.keep_open && !options.terminal;
}

Program::~Program() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  CloseAndForget(&input_);
  CloseAndForget(&output_);
  CloseAndForget(&error_);
}

void Program::Write(const std::string& text) {
  pending_input_ += text;
  Pump(0);
}

void Program::Signal(int signal) { kill(pid_, signal); }

void Program::CloseInput() { close_when_written_ = true; }

void Program::CloseOutput() { CloseAndForget(&output_); }

// Moves bytes both ways; false when the program has closed both outputs.
bool Program::Pump(int milliseconds) {
  if (input_ >= 0 && close_when_written_ && pending_input_.empty()) CloseAndForget(&input_);
  pollfd fds[4] = {{output_, POLLIN, 0},
                   {error_, POLLIN, 0},
                   {pending_input_.empty() ? -1 : input_, POLLOUT, 0},
                   {terminal_open_ ? input_ : -1, POLLIN, 0}};
  if (output_ < 0 && error_ < 0) return false;
  if (poll(fds, 4, milliseconds) <= 0) return true;
  if (fds[0].revents != 0 && !ReadSome(output_, &result_.out)) CloseAndForget(&output_);
  if (fds[1].revents != 0 && !ReadSome(error_, &result_.err)) CloseAndForget(&error_);
  if (fds[3].revents != 0 && !ReadSome(input_, &shown_)) terminal_open_ = false;
  if (fds[2].revents != 0) {
    const ssize_t count = write(input_, pending_input_.data(), pending_input_.size());
    if (count > 0) {
      pending_input_.erase(0, static_cast<size_t>(count));
    } else if (count < 0 && errno != EAGAIN && errno != EINTR) {
      pending_input_.clear();  // the program does not read it
      CloseAndForget(&input_);
    }
  }
  return output_ >= 0 || error_ >= 0;
}

bool Program::WaitUntil(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline || !Pump(100)) return condition();
  }
  return true;
}

bool Program::WaitForOutput(const std::string& text) {
  return WaitUntil([&] { return result_.out.find(text) != std::string::npos; });
}

bool Program::WaitForError(const std::string& text) {
  return WaitUntil([&] { return result_.err.find(text) != std::string::npos; });
}

bool Program::WaitForTerminal(const std::string& text) {
  return WaitUntil([&] { return shown_.find(text) != std::string::npos; });
}

bool Program::TerminalIsAsBefore() const {
  termios state{};
  return tcgetattr(input_, &state) == 0 && (state.c_lflag & ICANON) != 0 &&
         (state.c_lflag & ECHO) != 0;
}

bool Program::WaitForBytes(size_t bytes) {
  return WaitUntil([&] { return result_.out.size() >= bytes; });
}

ProgramResult Program::Finish() {
  // Closing a terminal is a hang-up; a program with a terminal ends by itself.
  close_when_written_ = !terminal_;
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  while (Pump(100)) {
    if (std::chrono::steady_clock::now() > deadline) {
      ADD_FAILURE() << "the program did not end";
      kill(pid_, SIGKILL);
    }
  }
  int status = 0;
  waitpid(std::exchange(pid_, -1), &status, 0);
  result_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result_;
}

ProgramResult RunProgram(const std::vector<std::string>& arguments, const ProgramOptions& options) {
  return Program(arguments, options).Finish();
}

}  // namespace litecache::testing
