// Sums and concatenations between GPUs by NCCL, in the stream's order: they become part of the
// graph of a step. Its library is loaded when it is needed.
#include "parallel/nccl_cuda.h"

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/logging.h"
#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/open_library.h"
#include "device/device_error.h"
#include "parallel/communicator.h"
#ifdef LITECACHE_HAVE_NCCL
#include <nccl.h>
#include <nccl_device.h>

#include "parallel/summands_cuda.h"
#endif

namespace litecache::parallel {

#ifdef LITECACHE_HAVE_NCCL
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

// The functions of the library that this machine has.
class Nccl {
 public:
  static const Nccl& Get() {
    static const Nccl nccl;
    return nccl;
  }

  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRank) init_rank = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  // Null in versions other than the header's 2.28 or later: kernels know their structures.
  decltype(&ncclMemAlloc) mem_alloc = nullptr;
  decltype(&ncclMemFree) mem_free = nullptr;
  decltype(&ncclCommWindowRegister) register_window = nullptr;
  decltype(&ncclCommWindowDeregister) deregister_window = nullptr;
  decltype(&ncclDevCommCreate) create_device_end = nullptr;
  decltype(&ncclDevCommDestroy) destroy_device_end = nullptr;

  void Check(ncclResult_t result, const char* what) const {
    if (result == ncclSuccess) return;
    throw DeviceError(std::string("NCCL: ") + what + ": " + error_string(result) +
                      "; NCCL_DEBUG=INFO says more");
  }

 private:
  Nccl() {
    std::string why;
    library_ = OpenCudaLibrary({kLibrary}, &why);
    if (library_ == nullptr) {
      throw DeviceError("tensor parallelism on GPUs needs NCCL, but " + why +
                        ": install NVIDIA's package libnccl2, or pip's nvidia-nccl-cu13 and name "
                        "its lib folder in LITECACHE_CUDA_LIBRARIES (the Python package does)");
    }
    Find("ncclGetUniqueId", &get_unique_id);
    Find("ncclCommInitRank", &init_rank);
    Find("ncclCommAbort", &abort);
    Find("ncclCommDestroy", &destroy);
    Find("ncclAllReduce", &all_reduce);
    Find("ncclAllGather", &all_gather);
    Find("ncclGetErrorString", &error_string);
    decltype(&ncclGetVersion) get_version = nullptr;
    Find("ncclGetVersion", &get_version);
    int version = 0;
    Check(get_version(&version), "its version");
    if (version / 100 != NCCL_VERSION_CODE / 100) return;
    Find("ncclDevCommCreate", &create_device_end);
    Find("ncclDevCommDestroy", &destroy_device_end);
    Find("ncclCommWindowRegister", &register_window);
    Find("ncclCommWindowDeregister", &deregister_window);
    Find("ncclMemAlloc", &mem_alloc);
    Find("ncclMemFree", &mem_free);
  }
  template <class Function>
  void Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library_, name));
    if (*function == nullptr) throw DeviceError(std::string(kLibrary) + " has no " + name);
  }
  void* library_;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Device& device, std::shared_ptr<ProcessGroup> group)
      : nccl_(Nccl::Get()),
        group_(std::move(group)),
        check_(std::make_shared<const std::function<void()>>([this] { group_->Check(); })) {
    ncclUniqueId id;
    if (rank() == 0) nccl_.Check(nccl_.get_unique_id(&id), "no address for the ranks");
    std::vector<int64_t> words(sizeof(id) / sizeof(int64_t));
    std::memcpy(words.data(), &id, sizeof(id));
    group_->Broadcast(&words);
    std::memcpy(&id, words.data(), sizeof(id));
    nccl_.Check(nccl_.init_rank(&comm_, ranks(), id, rank()), "the ranks cannot connect");
    OpenWindow(device);
    group_->OnEnd([this] { EndWaits(); });
    // Connections are made by the first operation, and must not be while a graph is captured.
    const auto stream = device.CreateStream();
    const Buffer buffer = device.Allocate(kLargest * sizeof(float));
    for (const int64_t count : {int64_t{1}, kLargest}) {
      AllReduce(*stream, MatrixView::Of(buffer.as<float>(), 1, count));
      AllGather(*stream, MatrixView::Of(buffer.as<float>(), 1, count / ranks()),
                MatrixView::Of(buffer.as<float>(), ranks(), count / ranks()));
      stream->Synchronize();
    }
  }
  ~NcclCommunicator() override {
    group_->OnEnd(nullptr);
    try {
      group_->Check();
      CloseWindow();
      nccl_.destroy(comm_);
      cudaFreeHost(stop_);
    } catch (const Error&) {  // it has been aborted
    }
  }

  int rank() const override { return group_->rank(); }
  int ranks() const override { return group_->ranks(); }
  void AllReduce(Stream& stream, const MatrixView& x) override {
    LC_CHECK(x.dtype == DType::kF32 && x.stride == x.cols);
    Begin(stream);
    auto* const data = x.Row<float>(0);
    nccl_.Check(nccl_.all_reduce(data, data, static_cast<size_t>(x.rows * x.cols), ncclFloat,
                                 ncclSum, comm_, AsCuda(stream).handle()),
                "sum of the ranks");
  }
  void AllGather(Stream& stream, const MatrixView& own, const MatrixView& all) override {
    LC_CHECK(own.dtype == DType::kF32 && own.stride == own.cols && all.stride == all.cols &&
             all.cols == own.cols && all.rows == ranks() * own.rows);
    Begin(stream);
    nccl_.Check(nccl_.all_gather(own.Row<float>(0), all.Row<float>(0),
                                 static_cast<size_t>(own.rows * own.cols), ncclFloat, comm_,
                                 AsCuda(stream).handle()),
                "rows of the ranks");
  }

  MatrixView NextSummand(int64_t rows, int64_t cols) override {
    if (!sums_ || rows * cols > summand_values_ || cols % 4 != 0) return {};
    next_ = 1 - next_;
    return MatrixView::Of(static_cast<float*>(memory_) + next_ * summand_values_, rows, cols);
  }
  void SumSummands(Stream& stream, const MatrixView& summand, ops::Epilogue epilogue,
                   const MatrixView& y) override {
    Begin(stream);
    const auto offset = static_cast<size_t>(static_cast<std::byte*>(summand.data) -
                                            static_cast<std::byte*>(memory_));
    SumWindows(stream, meetings_, offset, epilogue, y);
  }

 private:
  // A prompt's chunk behind a million tokens takes a few seconds.
  static constexpr std::chrono::seconds kLongestStep{20};
  // Larger than what is sent by the protocols for small messages.
  static constexpr int64_t kLargest = int64_t{1} << 24;
  // A rank reads the summands of all others, where NCCL's sums of many values send each value
  // twice, however many ranks there are: more than two use NCCL for prompts. 8,192 rows of 4,096
  // values: 0.47 ms by NCCL.
  static constexpr int64_t kFewValues = int64_t{1} << 20, kManyValues = int64_t{1} << 25;

  // Memory that each rank's kernels can read on the others, where the GPUs are linked for that;
  // where they are not on all ranks, there are no summands.
  void OpenWindow(Device& device) {
    if (nccl_.register_window == nullptr) return;
    const auto on_all = [&](bool works) {
      uint64_t least = works ? 1 : 0;
      group_->Minimum({&least, 1});
      return least != 0;
    };
    summand_values_ = ranks() <= 2 ? kManyValues : kFewValues;
    // Two summands follow each other, and behind them are the arrivals.
    const size_t summand_bytes = static_cast<size_t>(summand_values_) * sizeof(float);
    const size_t bytes = 2 * summand_bytes + SumMeetings::kArrivalBytes;
    if (nccl_.mem_alloc(&memory_, bytes) != ncclSuccess) memory_ = nullptr;
    if (!on_all(memory_ != nullptr && ranks() <= kMostSumRanks)) return;
    const std::vector<std::byte> zeros(SumMeetings::kArrivalBytes);
    device.Upload(static_cast<std::byte*>(memory_) + 2 * summand_bytes, zeros.data(), zeros.size());
    const ncclResult_t registered =
        nccl_.register_window(comm_, memory_, bytes, &window_, NCCL_WIN_COLL_SYMMETRIC);
    if (!on_all(registered == ncclSuccess && window_ != nullptr)) {
      LogInfo("tensor parallelism: the GPUs cannot read each other's memory; NCCL copies");
      return;
    }
    const ncclDevCommRequirements needs = {};
    ncclDevComm end = {};
    const bool has_end = nccl_.create_device_end(comm_, &needs, &end) == ncclSuccess;
    sums_ = on_all(has_end && end.lsaSize == ranks());
    if (has_end) nccl_.destroy_device_end(comm_, &end);
    if (!sums_) return;
    LC_CUDA(cudaHostAlloc(&stop_, sizeof(*stop_), cudaHostAllocMapped));
    *stop_ = 0;
    turns_ = device.Allocate(kMostSumBlocks * sizeof(uint32_t));
    device.Upload(turns_.data(), zeros.data(), turns_.size());
    meetings_ = {.window = window_,
                 .arrivals = 2 * summand_bytes,
                 .turns = turns_.as<uint32_t>(),
                 .stop = stop_,
                 .rank = rank(),
                 .ranks = ranks()};
  }
  // Ends the kernels that wait for a rank that has ended. If one goes on waiting, the process ends
  // rather than hang.
  void EndWaits() {
    if (stop_ != nullptr) std::atomic_ref(*stop_).store(1);
    // NCCL sets a flag that ends its kernels, and then waits for the graphs that hold them.
    std::thread([abort = nccl_.abort, comm = comm_] { abort(comm); }).detach();
    const auto limit = std::chrono::steady_clock::now() + kLongestStep;
    while (handle_ != nullptr && cudaStreamQuery(handle_) == cudaErrorNotReady) {
      if (std::chrono::steady_clock::now() > limit) {
        LogError("the GPU still waits for the rank that has ended: this process ends, too");
        _exit(1);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  void CloseWindow() {
    if (window_ != nullptr) nccl_.deregister_window(comm_, window_);
    if (memory_ != nullptr) nccl_.mem_free(memory_);
  }

  void Begin(Stream& stream) {
    group_->Check();
    if (stream_ == &stream) return;
    AsCuda(stream).AddCheck(check_);
    stream_ = &stream;
    handle_ = AsCuda(stream).handle();
  }

  const Nccl& nccl_;
  std::shared_ptr<ProcessGroup> group_;
  ncclComm_t comm_ = nullptr;
  bool sums_ = false;           // there are summands
  int64_t summand_values_ = 0;  // of the largest
  void* memory_ = nullptr;
  ncclWindow_t window_ = nullptr;
  uint32_t* stop_ = nullptr;
  Buffer turns_;
  SumMeetings meetings_;
  size_t next_ = 0;                 // the summand that is used next: 0 or 1
  const Stream* stream_ = nullptr;  // used last
  std::atomic<cudaStream_t> handle_ = nullptr;
  std::shared_ptr<const std::function<void()>> check_;
};

}  // namespace

std::shared_ptr<Communicator> CreateNcclCommunicator(Device& device,
                                                     std::shared_ptr<ProcessGroup> group) {
  return std::make_shared<NcclCommunicator>(device, std::move(group));
}

#else

std::shared_ptr<Communicator> CreateNcclCommunicator(Device&, std::shared_ptr<ProcessGroup>) {
  throw Unsupported("tensor parallelism on GPUs: this program was built without NCCL's header");
}

#endif

}  // namespace litecache::parallel
