// Sums and concatenations between GPUs by NCCL, in the stream's order: they become part of the
// graph of a step. Its library is loaded when it is needed.
#include "parallel/nccl_cuda.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "device/device_error.h"
#include "parallel/communicator.h"
#ifdef LITECACHE_HAVE_NCCL
#include <nccl.h>
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
  // Null in versions before 2.27.
  decltype(&ncclMemAlloc) mem_alloc = nullptr;
  decltype(&ncclMemFree) mem_free = nullptr;
  decltype(&ncclCommWindowRegister) register_window = nullptr;
  decltype(&ncclCommWindowDeregister) deregister_window = nullptr;

  void Check(ncclResult_t result, const char* what) const {
    if (result == ncclSuccess) return;
    throw DeviceError(std::string("NCCL: ") + what + ": " + error_string(result) +
                      "; NCCL_DEBUG=INFO says more");
  }

 private:
  Nccl() {
    library_ = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) {
      throw DeviceError(std::string("tensor parallelism on GPUs needs NCCL, but ") + dlerror() +
                        ": install NVIDIA's package libnccl2, or pip's nvidia-nccl-cu13 and put "
                        "its folder on LD_LIBRARY_PATH");
    }
    Find("ncclGetUniqueId", &get_unique_id);
    Find("ncclCommInitRank", &init_rank);
    Find("ncclCommAbort", &abort);
    Find("ncclCommDestroy", &destroy);
    Find("ncclAllReduce", &all_reduce);
    Find("ncclAllGather", &all_gather);
    Find("ncclGetErrorString", &error_string);
    if (!TryFind("ncclCommWindowRegister", &register_window)) return;
    Find("ncclCommWindowDeregister", &deregister_window);
    Find("ncclMemAlloc", &mem_alloc);
    Find("ncclMemFree", &mem_free);
  }
  template <class Function>
  bool TryFind(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library_, name));
    return *function != nullptr;
  }
  template <class Function>
  void Find(const char* name, Function* function) {
    if (!TryFind(name, function)) throw DeviceError(std::string(kLibrary) + " has no " + name);
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
    TakeShared();
    // A kernel that waits for a rank that has ended would wait forever.
    group_->OnEnd([this] { nccl_.abort(comm_); });
    // Connections are made by the first operation, and must not be while a graph is captured.
    const auto stream = device.CreateStream();
    const Buffer buffer = device.Allocate(kLargest * sizeof(float));
    if (shared_ != nullptr) AllReduce(*stream, MatrixView::Of(static_cast<float*>(shared_), 1, 1));
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
      if (window_ != nullptr) nccl_.deregister_window(comm_, window_);
      if (shared_ != nullptr) nccl_.mem_free(shared_);
      nccl_.destroy(comm_);
    } catch (const Error&) {  // it has been aborted
    }
  }

  int rank() const override { return group_->rank(); }
  int ranks() const override { return group_->ranks(); }
  std::span<std::byte> shared() const override {
    return {static_cast<std::byte*>(shared_), shared_ == nullptr ? 0 : kSharedBytes};
  }

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

 private:
  // Larger than what is sent by the protocols for small messages.
  static constexpr int64_t kLargest = int64_t{1} << 24;
  // Two activations of 256 rows of 8,192 values.
  static constexpr size_t kSharedBytes = size_t{16} << 20;

  // Memory that each rank's kernels can read and write on the others, where the GPUs are linked for
  // that; else NCCL refuses, and sums take the usual way.
  void TakeShared() {
    if (nccl_.register_window == nullptr) return;
    if (nccl_.mem_alloc(&shared_, kSharedBytes) != ncclSuccess) shared_ = nullptr;
    uint64_t have = shared_ != nullptr ? 1 : 0;
    group_->Minimum({&have, 1});
    if (have == 0) return;
    nccl_.Check(
        nccl_.register_window(comm_, shared_, kSharedBytes, &window_, NCCL_WIN_COLL_SYMMETRIC),
        "memory that ranks share");
  }

  void Begin(Stream& stream) {
    group_->Check();
    if (stream_ == &stream) return;
    AsCuda(stream).AddCheck(check_);
    stream_ = &stream;
  }

  const Nccl& nccl_;
  std::shared_ptr<ProcessGroup> group_;
  ncclComm_t comm_ = nullptr;
  void* shared_ = nullptr;
  ncclWindow_t window_ = nullptr;
  const Stream* stream_ = nullptr;  // used last
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
