#include "parallel/process_group.h"

#include <fmt/core.h>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <span>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/logging.h"
#include "base/units.h"
#include "device/cuda/cuda_devices.h"

namespace litecache::parallel {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// How long a rank waits for another one in the midst of their work, which is the same for both. One
// that ends closes its connections, which nearly always ends the operation at once: Gloo forgets
// what it is sending just then.
constexpr std::chrono::milliseconds kPatience = 10s;
// How long other ranks wait for what rank 0 does next; its end is theirs.
constexpr std::chrono::milliseconds kLongPatience = 30 * 24h;

int64_t ThreadsOfThisProcess() {
  return std::distance(fs::directory_iterator("/proc/self/task"), fs::directory_iterator());
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

// Words of a rank's board: the counters of 1,000 layers with 64 heads. Pages take memory once they
// are written.
constexpr size_t kBoardWords = size_t{1} << 20;

// Lives as long as the process.
uint64_t* MakeBoards(int ranks) {
  void* const memory =
      mmap(nullptr, static_cast<size_t>(ranks) * kBoardWords * sizeof(uint64_t),
           PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(fmt::format("no memory that {} ranks share: {}", ranks, std::strerror(errno)));
  }
  return static_cast<uint64_t*>(memory);
}

// A file without a name, in memory. It lasts as long as a process has it open.
int MakeSharedFile() {
  const int file = memfd_create("litecache-ranks", MFD_CLOEXEC);
  if (file < 0) throw Error(fmt::format("no memory that ranks share: {}", std::strerror(errno)));
  return file;
}

// The two ends of a channel.
std::array<int, 2> MakeChannel() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw Error(fmt::format("no channel to a rank: {}", std::strerror(errno)));
  }
  return ends;
}

// False if the other end is closed.
bool Send(int channel, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = send(channel, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}
void Receive(int channel, void* to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t count = recv(channel, to, bytes, MSG_WAITALL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw RankEnded("rank 0 has ended");
    to = static_cast<std::byte*>(to) + count;
    bytes -= static_cast<size_t>(count);
  }
}

// Ends with the process, before the log does, to which the thread that watches the ranks writes.
std::shared_ptr<ProcessGroup>& Only() {
  static std::shared_ptr<ProcessGroup> group = [] {
    LogDebug("ranks: none yet");  // the log begins here at the latest
    return nullptr;
  }();
  return group;
}

}  // namespace

ProcessGroup::ProcessGroup(int rank, int ranks, uint64_t* boards, int shared_file)
    : rank_(rank), ranks_(ranks), boards_(boards), shared_file_(shared_file) {}

ProcessGroup::~ProcessGroup() {
  processes_.StopWatching();
  if (context_ != nullptr) context_->closeConnections();
  for (const int channel : channels_) close(channel);
}

std::shared_ptr<ProcessGroup> ProcessGroup::Current() { return Only(); }

std::shared_ptr<ProcessGroup> ProcessGroup::Start(int ranks) {
  if (ranks < 1) throw InvalidArgument("{} ranks: there is at least one", ranks);
  if (const auto& group = Only()) {
    if (group->ranks() == ranks) return group;
    throw Unsupported("tensor_parallel = {}: this process has {} ranks already", ranks,
                      group->ranks());
  }
  if (const int64_t threads = ThreadsOfThisProcess(); threads > 1) {
    throw Unsupported(
        "tensor_parallel = {}: this process has {} threads already and cannot be copied; use the "
        "program litecache, or load the engine first",
        ranks, threads);
  }
  const fs::path place = MakeMeetingPlace();
  uint64_t* const boards = MakeBoards(ranks);
  const int shared_file = MakeSharedFile();
  std::shared_ptr<ProcessGroup> group(new ProcessGroup(0, ranks, boards, shared_file));
  for (int rank = 1; rank < ranks; ++rank) {
    const std::array<int, 2> ends = MakeChannel();
    const bool other = group->processes_.StartCopy();
    close(ends[other ? 0 : 1]);
    if (other) group.reset(new ProcessGroup(rank, ranks, boards, shared_file));
    group->channels_.push_back(ends[other ? 1 : 0]);
    if (other) break;
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
  Only() = group;
  if (group->rank_ != 0) return group;
  fs::remove_all(place);
  group->processes_.StartWatching();
  return group;
}

void ProcessGroup::ThrowEnded(const char* error) const {
  // Rank 0 has ended, or will say which rank has.
  if (rank_ != 0) throw RankEnded(error);
  // The connection's end can be seen before the process's.
  for (int i = 0; i < 20; ++i) {
    Check();
    std::this_thread::sleep_for(50ms);
  }
  throw RankEnded(fmt::format("the connection to a rank is lost: {}", error));
}

void ProcessGroup::Together(const std::function<void()>& operation) const {
  try {
    operation();
  } catch (const gloo::Exception& error) {
    ThrowEnded(error.what());
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
  auto size = static_cast<int64_t>(words->size());
  if (rank_ != 0) {
    Receive(channels_[0], &size, sizeof(size));
    words->resize(static_cast<size_t>(size));
    return Receive(channels_[0], words->data(), words->size() * sizeof(int64_t));
  }
  words->insert(words->begin(), size);
  const auto bytes = std::as_bytes(std::span(*words));
  const bool sent =
      std::ranges::all_of(channels_, [bytes](int channel) { return Send(channel, bytes); });
  words->erase(words->begin());
  if (!sent) ThrowEnded(std::strerror(errno));
}

std::span<uint64_t> ProcessGroup::board(int rank) const {
  LC_CHECK(rank >= 0 && rank < ranks_);
  return {boards_ + static_cast<size_t>(rank) * kBoardWords, kBoardWords};
}

std::span<std::byte> ProcessGroup::SharedMemory(size_t bytes) {
  if (bytes <= shared_.size()) return shared_.first(bytes);
  const auto size = static_cast<off_t>(bytes);
  void* const memory =
      rank_ == 0 && ftruncate(shared_file_, size) != 0
          ? MAP_FAILED
          : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shared_file_, 0);
  if (memory == MAP_FAILED) {
    throw CapacityError("no memory of {} that the ranks share: {}", FormatBytes(bytes),
                        std::strerror(errno));
  }
  if (!shared_.empty()) munmap(shared_.data(), shared_.size());
  shared_ = {static_cast<std::byte*>(memory), bytes};
  return shared_;
}

void ProcessGroup::Check() const {
  if (const std::string ended = processes_.ended(); !ended.empty()) throw RankEnded(ended);
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
