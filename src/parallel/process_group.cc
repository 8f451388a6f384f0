#include "parallel/process_group.h"

#include <fmt/core.h>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <thread>
#include <utility>

#include "base/error.h"
#include "device/cuda/cuda_devices.h"

namespace litecache::parallel {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// How long a rank waits for another one in the midst of their work. One that ends closes its
// connections, which nearly always ends the operation at once.
constexpr std::chrono::milliseconds kPatience = 2min;
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

// Ends with the process.
std::shared_ptr<ProcessGroup> current;

}  // namespace

ProcessGroup::ProcessGroup(int rank, int ranks, uint64_t* boards)
    : rank_(rank), ranks_(ranks), boards_(boards) {}

ProcessGroup::~ProcessGroup() {
  processes_.StopWatching();
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
  uint64_t* const boards = MakeBoards(ranks);
  std::shared_ptr<ProcessGroup> group(new ProcessGroup(0, ranks, boards));
  for (int rank = 1; rank < ranks; ++rank) {
    if (!group->processes_.StartCopy()) continue;
    group.reset(new ProcessGroup(rank, ranks, boards));
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
  group->processes_.StartWatching();
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

std::span<uint64_t> ProcessGroup::board(int rank) const {
  LC_CHECK(rank >= 0 && rank < ranks_);
  return {boards_ + static_cast<size_t>(rank) * kBoardWords, kBoardWords};
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
