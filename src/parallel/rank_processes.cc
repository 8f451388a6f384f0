#include "parallel/rank_processes.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/logging.h"

namespace litecache::parallel {
namespace {

// For the others to end by themselves.
constexpr std::chrono::seconds kLastWork{10};

// "exit status 1", "signal 9 (Killed)".
std::string HowItEnded(int status) {
  if (!WIFSIGNALED(status)) return fmt::format("exit status {}", WEXITSTATUS(status));
  return fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
}

void Redirect(int to, int flags) {
  const int null = open("/dev/null", flags | O_CLOEXEC);
  if (null < 0) return;
  dup2(null, to);
  close(null);
}

// What a copy is in which rank 0's program goes on.
void BecomeRank(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it has ended already
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_IGN);
  Redirect(STDIN_FILENO, O_RDONLY);
  Redirect(STDOUT_FILENO, O_WRONLY);
}

}  // namespace

bool RankProcesses::StartCopy() {
  const pid_t parent = getpid();
  int ends[2];
  const pid_t pid = pipe2(ends, O_CLOEXEC) == 0 ? fork() : -1;
  if (pid < 0) {
    throw Error(
        fmt::format("rank {} cannot start: {}", processes_.size() + 1, std::strerror(errno)));
  }
  if (pid > 0) {
    close(ends[1]);
    processes_.push_back({pid, ends[0]});
    return false;
  }
  close(ends[0]);
  for (const Process& process : processes_) close(process.fd);
  processes_.clear();  // they are rank 0's
  BecomeRank(parent);
  return true;
}

void RankProcesses::StartWatching() {
  stop_ = eventfd(0, EFD_CLOEXEC);
  watch_ = std::thread([this] { Watch(); });
}

void RankProcesses::StopWatching() {
  if (!watch_.joinable()) return;
  const uint64_t one = 1;
  if (write(stop_, &one, sizeof(one)) < 0) LogDebug("ranks: {}", std::strerror(errno));
  watch_.join();
  close(stop_);
}

std::string RankProcesses::ended() const {
  std::lock_guard lock(mutex_);
  return ended_;
}

void RankProcesses::OnEnd(std::function<void()> ended) {
  std::lock_guard lock(mutex_);
  on_end_ = std::move(ended);
}

void RankProcesses::Collect(Process* process) {
  if (!process->ended.empty()) return;
  int status = 0;
  waitpid(process->pid, &status, 0);
  process->ended = HowItEnded(status);
}

void RankProcesses::Watch() {
  std::vector<pollfd> fds = {{.fd = stop_, .events = POLLIN, .revents = 0}};
  for (const Process& process : processes_) fds.push_back({process.fd, POLLIN, 0});
  while (poll(fds.data(), fds.size(), -1) < 0 && errno == EINTR) {
  }
  if (fds[0].revents != 0) return;
  std::string first;
  std::function<void()> tell;
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (fds[i + 1].revents == 0) continue;
    Collect(&processes_[i]);
    if (first.empty()) first = fmt::format("rank {} has ended ({})", i + 1, processes_[i].ended);
  }
  {
    std::lock_guard lock(mutex_);
    ended_ = first;
    tell = on_end_;
  }
  // The others are of no use without it.
  for (const Process& process : processes_) {
    if (process.ended.empty()) kill(process.pid, SIGKILL);
  }
  LogError("{}; requests cannot be answered any more: restart the program", first);
  if (tell) tell();
}

RankProcesses::~RankProcesses() {
  StopWatching();
  const auto limit = std::chrono::steady_clock::now() + kLastWork;
  for (Process& process : processes_) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        limit - std::chrono::steady_clock::now());
    pollfd ended = {process.fd, POLLIN, 0};
    if (process.ended.empty() &&
        poll(&ended, 1, static_cast<int>(std::max<int64_t>(0, left.count()))) <= 0) {
      kill(process.pid, SIGKILL);
    }
    Collect(&process);
    close(process.fd);
  }
}

}  // namespace litecache::parallel
