#include "cli/interrupt.h"

#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "base/error.h"
#include "cli/exit_codes.h"

namespace litecache::cli {
namespace {

std::atomic<bool> deferred{false};
std::atomic<int> presses{0}, last{0};
std::atomic<int> terminal{-1};
termios terminal_state;  // valid where `terminal` is not -1
const char* terminal_text = "";
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

int CodeOf(int signal) { return signal == SIGTERM ? kTerminated : kInterrupted; }

extern "C" void OnInterrupt(int signal) {
  last = signal;
  if (deferred.load() && presses.fetch_add(1) == 0) return;
  // Only async-signal-safe calls from here on.
  [[maybe_unused]] ssize_t written = 0;
  if (isatty(STDERR_FILENO)) written = write(STDERR_FILENO, "\r\033[K", 4);
  if (const int descriptor = terminal.load(); descriptor >= 0) {
    written = write(descriptor, terminal_text, std::strlen(terminal_text));
    tcsetattr(descriptor, TCSANOW, &terminal_state);
  }
  _exit(CodeOf(signal));
}

void Handle(int signal, struct sigaction* before) {
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // no SA_RESTART: a chat waiting for a line has to notice it
  LC_CHECK(sigaction(signal, &action, before) == 0);
}

}  // namespace

void InstallInterruptHandler() { Handle(SIGINT, nullptr); }

void RestoreTerminalOnInterrupt(int descriptor, const char* text) {
  terminal = -1;
  terminal_text = text;
  if (descriptor >= 0 && tcgetattr(descriptor, &terminal_state) == 0) terminal = descriptor;
}

InterruptScope::InterruptScope(bool terminated) : terminated_(terminated) {
  presses = 0;
  deferred = true;
  if (terminated_) Handle(SIGTERM, &before_);
}

InterruptScope::~InterruptScope() {
  if (terminated_) sigaction(SIGTERM, &before_, nullptr);
  deferred = false;
}

bool InterruptScope::Interrupted() const { return presses.load() > 0; }

int InterruptScope::ExitCode() const { return CodeOf(last.load()); }

void InterruptScope::Reset() const { presses = 0; }

}  // namespace litecache::cli
