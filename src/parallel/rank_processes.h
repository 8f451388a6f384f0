// The processes that rank 0 has started: copies of itself, and a thread that learns when one ends.
#pragma once

#include <sys/types.h>

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace litecache::parallel {

class RankProcesses {
 public:
  RankProcesses() = default;
  // Waits for the processes, which have been told to end, and ends those that do not.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // Starts a copy of this process, the next rank, in which this returns true: it has no standard
  // input and output, ignores signals to end, and ends when rank 0 does. Throws Error.
  bool StartCopy();
  // Once a process ends from here on, ends the others and calls OnEnd()'s function.
  void StartWatching();
  void StopWatching();
  // "rank 1 has ended (exit status 1)"; empty: none has.
  std::string ended() const;
  // Null: none.
  void OnEnd(std::function<void()> ended);

 private:
  struct Process {
    pid_t pid;
    int fd;  // the end of a pipe whose other end it has: hangs up once it has ended
    std::string ended = {};
  };
  static void Collect(Process* process);
  void Watch();

  std::vector<Process> processes_;
  int stop_ = -1;  // of the thread
  mutable std::mutex mutex_;
  std::string ended_;  // guarded by the mutex
  std::function<void()> on_end_;
  std::thread watch_;
};

}  // namespace litecache::parallel
