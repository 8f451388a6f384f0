#include "parallel/process_group.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/logging.h"
#include "device/cuda/cuda_devices.h"

namespace litecache::parallel {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// How long a rank waits for another one in the midst of their work. One that ends closes its
// connections, which nearly always ends the operation at once.
constexpr std::chrono::milliseconds kPatience = 1min;
// How long other ranks wait for what rank 0 does next; its end is theirs.
constexpr std::chrono::milliseconds kLongPatience = 30 * 24h;
// For the others to end by themselves.
constexpr auto kLastWork = 10s;

// "exit status 1", "signal 9 (Killed)".
std::string HowItEnded(int status) {
  if (!WIFSIGNALED(status)) return fmt::format("exit status {}", WEXITSTATUS(status));
  return fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
}

int64_t ThreadsOfThisProcess() {
  return std::distance(fs::directory_iterator("/proc/self/task"), fs::directory_iterator());
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

// A new directory, in which ranks find each other's addresses.
fs::path MakeMeetingPlace() {
  std::string name = (fs::temp_directory_path() / "litecache-ranks-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    throw FileError("{}: cannot make a directory for the ranks' addresses: {}",
                    fs::temp_directory_path().string(), std::strerror(errno));
  }
  return name;
}

// Ends with the process.
std::shared_ptr<ProcessGroup> current;

}  // namespace

// The processes that rank 0 has started, and the thread that learns when one ends.
struct ProcessGroup::Others {
  struct Process {
    pid_t pid;
    int fd;  // the end of a pipe whose other end it has: hangs up once it has ended
    std::string ended = {};
  };
  std::vector<Process> processes;
  int stop = -1;  // of `watch`
  std::mutex mutex;
  std::string early;  // which one ended too early, and how; guarded by `mutex`
  std::function<void()> on_end;
  std::thread watch;

  void Collect(Process* process) {
    if (!process->ended.empty()) return;
    int status = 0;
    waitpid(process->pid, &status, 0);
    process->ended = HowItEnded(status);
  }
  // Until stopped, or one has ended; the others are of no use without it.
  void Watch() {
    std::vector<pollfd> fds = {{.fd = stop, .events = POLLIN, .revents = 0}};
    for (const Process& process : processes) fds.push_back({process.fd, POLLIN, 0});
    while (poll(fds.data(), fds.size(), -1) < 0 && errno == EINTR) {
    }
    if (fds[0].revents != 0) return;
    std::function<void()> tell;
    for (size_t i = 0; i < processes.size(); ++i) {
      if (fds[i + 1].revents == 0) continue;
      Collect(&processes[i]);
      std::lock_guard lock(mutex);
      if (early.empty()) early = fmt::format("rank {} has ended ({})", i + 1, processes[i].ended);
      tell = on_end;
    }
    for (const Process& process : processes) {
      if (process.ended.empty()) kill(process.pid, SIGKILL);
    }
    LogError("{}; requests cannot be answered any more: restart the program", early);
    if (tell) tell();
  }
  void StartWatching() {
    stop = eventfd(0, EFD_CLOEXEC);
    watch = std::thread([this] { Watch(); });
  }
  void StopWatching() {
    if (!watch.joinable()) return;
    const uint64_t one = 1;
    if (write(stop, &one, sizeof(one)) < 0) LogDebug("ranks: {}", std::strerror(errno));
    watch.join();
    close(stop);
  }
  ~Others() {
    const auto limit = std::chrono::steady_clock::now() + kLastWork;
    for (Process& process : processes) {
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
};

ProcessGroup::ProcessGroup(int rank, int ranks)
    : rank_(rank), ranks_(ranks), others_(std::make_unique<Others>()) {}

ProcessGroup::~ProcessGroup() {
  others_->StopWatching();
  if (context_ != nullptr) context_->closeConnections();
}

std::shared_ptr<ProcessGroup> ProcessGroup::Current() { return current; }

std::shared_ptr<ProcessGroup> ProcessGroup::Start(int ranks) {
  if (ranks < 2) throw InvalidArgument("{} ranks: there are at least two", ranks);
  if (current != nullptr) {
    if (current->ranks() == ranks) return current;
    throw Unsupported("tensor_parallel = {}: this process has {} ranks already", ranks,
                      current->ranks());
  }
  if (const int64_t threads = ThreadsOfThisProcess(); threads > 1) {
    throw Unsupported(
        "tensor_parallel = {}: this process has {} threads already and cannot be copied; use the "
        "program litecache, or load the engine first",
        ranks, threads);
  }
  const fs::path place = MakeMeetingPlace();
  const pid_t parent = getpid();
  std::shared_ptr<ProcessGroup> group(new ProcessGroup(0, ranks));
  for (int rank = 1; rank < ranks; ++rank) {
    int ends[2];
    const pid_t pid = pipe2(ends, O_CLOEXEC) == 0 ? fork() : -1;
    if (pid < 0) throw Error(fmt::format("rank {} cannot start: {}", rank, std::strerror(errno)));
    if (pid > 0) {
      close(ends[1]);
      group->others_->processes.push_back({pid, ends[0]});
      continue;
    }
    close(ends[0]);
    BecomeRank(parent);
    group->others_->processes.clear();  // they are rank 0's
    group.reset(new ProcessGroup(rank, ranks));
    break;
  }
  try {
    auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
    gloo::rendezvous::FileStore store(place.string());
    auto context = std::make_shared<gloo::rendezvous::Context>(group->rank_, ranks);
    context->connectFullMesh(store, device);
    group->context_ = context;
    uint64_t all = 0;
    group->Minimum({&all, 1});  // all have read the addresses
  } catch (const gloo::Exception& error) {
    fs::remove_all(place);
    throw Error(fmt::format("the {} ranks cannot connect: {}", ranks, error.what()));
  }
  current = group;
  if (group->rank_ != 0) return group;
  fs::remove_all(place);
  group->others_->StartWatching();
  return group;
}

void ProcessGroup::Together(const std::function<void()>& operation) const {
  try {
    operation();
  } catch (const gloo::Exception& error) {
    // Rank 0 has ended, or will say which rank has.
    if (rank_ != 0) throw RankEnded(error.what());
    // The connection's end can be seen before the process's.
    for (int i = 0; i < 20; ++i) {
      Check();
      std::this_thread::sleep_for(50ms);
    }
    throw RankEnded(fmt::format("the connection to a rank is lost: {}", error.what()));
  }
}

void ProcessGroup::AllReduce(Stream& stream, const MatrixView& x) {
  LC_CHECK(x.dtype == DType::kF32 && x.stride == x.cols);
  stream.Synchronize();
  Together([&] {
    gloo::AllreduceOptions options(context_);
    options.setOutput(x.Row<float>(0), static_cast<size_t>(x.rows * x.cols));
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, size_t)>(gloo::sum<float>));
    options.setTimeout(kPatience);
    gloo::allreduce(options);
  });
}

void ProcessGroup::AllGather(Stream& stream, const MatrixView& own, const MatrixView& all) {
  LC_CHECK(own.dtype == DType::kF32 && own.stride == own.cols && all.stride == all.cols &&
           all.cols == own.cols && all.rows == ranks_ * own.rows);
  stream.Synchronize();
  Together([&] {
    gloo::AllgatherOptions options(context_);
    options.setInput(own.Row<float>(0), static_cast<size_t>(own.rows * own.cols));
    options.setOutput(all.Row<float>(0), static_cast<size_t>(all.rows * all.cols));
    options.setTimeout(kPatience);
    gloo::allgather(options);
  });
}

void ProcessGroup::Minimum(std::span<uint64_t> values) {
  Together([&] {
    gloo::AllreduceOptions options(context_);
    options.setOutput(values.data(), values.size());
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, size_t)>(gloo::min<uint64_t>));
    options.setTimeout(kLongPatience);  // one rank may load its weights much faster
    gloo::allreduce(options);
  });
}

void ProcessGroup::Broadcast(std::vector<int64_t>* words) {
  const auto send = [&](int64_t* data, size_t count) {
    Together([&] {
      gloo::BroadcastOptions options(context_);
      options.setOutput(data, count);
      options.setRoot(0);
      options.setTimeout(rank_ == 0 ? kPatience : kLongPatience);
      gloo::broadcast(options);
    });
  };
  // Nearly all messages, of a decode step of some sequences, take one.
  constexpr size_t kAtOnce = 256;
  std::vector<int64_t> first(kAtOnce);
  first[0] = static_cast<int64_t>(words->size());
  const size_t head = std::min(words->size(), kAtOnce - 1);
  std::copy_n(words->begin(), head, first.begin() + 1);
  send(first.data(), first.size());
  const auto size = static_cast<size_t>(first[0]);
  if (rank_ != 0) {
    words->resize(size);
    std::copy_n(first.begin() + 1, std::min(size, kAtOnce - 1), words->begin());
  }
  if (size >= kAtOnce) send(words->data() + kAtOnce - 1, size - (kAtOnce - 1));
}

void ProcessGroup::Check() const {
  std::lock_guard lock(others_->mutex);
  if (!others_->early.empty()) throw RankEnded(others_->early);
}

bool ProcessGroup::ended() const {
  std::lock_guard lock(others_->mutex);
  return !others_->early.empty();
}

void ProcessGroup::OnEnd(std::function<void()> ended) {
  std::lock_guard lock(others_->mutex);
  others_->on_end = std::move(ended);
}

std::string DeviceOfRank(const std::string& device, int rank) {
  if (device == "cpu") return device;
  if (device == "auto") {
    return FindCudaDevices(rank).devices.empty() ? "cpu" : fmt::format("cuda:{}", rank);
  }
  int first = 0;
  if (device.starts_with("cuda:")) first = std::atoi(device.c_str() + 5);
  return fmt::format("cuda:{}", first + rank);
}

}  // namespace litecache::parallel
