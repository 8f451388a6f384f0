// Handling of Ctrl-C.
#pragma once

#include <signal.h>

namespace litecache::cli {

// Installs the handler: without an InterruptScope, Ctrl-C clears a half-drawn progress bar and ends
// the program with exit code 130.
void InstallInterruptHandler();

// Where Ctrl-C ends the program, the terminal gets its state of this moment back, and `text`, which
// outlives the program. descriptor: of the terminal; -1: do nothing any more.
void RestoreTerminalOnInterrupt(int descriptor, const char* text);

// While one exists, the first Ctrl-C only sets a flag, so that partial results can be printed; the
// second ends the program as above. System calls that wait for input return with EINTR.
class InterruptScope {
 public:
  // terminated: SIGTERM does the same, for work that leaves files behind if it just ends.
  explicit InterruptScope(bool terminated = false);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  bool Interrupted() const;
  // kInterrupted or kTerminated, once it is set.
  int ExitCode() const;
  // Clears the flag.
  void Reset() const;

 private:
  const bool terminated_;
  struct sigaction before_ = {};  // of SIGTERM
};

}  // namespace litecache::cli
