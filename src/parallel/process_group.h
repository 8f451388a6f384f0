// The processes of tensor parallelism on one machine, and what their hosts tell each other: rank
// 0's words over sockets, sums and concatenations by Gloo, over TCP.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "parallel/communicator.h"
#include "parallel/rank_processes.h"

namespace gloo {
class Context;
}

namespace litecache::parallel {

// A rank is no more: requests cannot be answered until the program is started again.
class RankEnded : public Error {
 public:
  using Error::Error;
};

// Rank 0 is the process that started the others. Also the communicator of ranks on CPUs. Used by
// one thread at a time.
class ProcessGroup final : public Communicator {
 public:
  // The group that this process has started; null: none.
  static std::shared_ptr<ProcessGroup> Current();
  // Starts `ranks` - 1 copies of this process, which continue behind this call as ranks 1, 2, ...
  // Call it before the process has threads or uses a GPU: throws Unsupported if it has threads,
  // InvalidArgument unless ranks >= 1, and Error if a rank ends before all are connected. Copies
  // read and write no standard input and output, leave signals to rank 0, and end with it. The
  // group lasts as long as the process: where there is one of that size, it is returned; of another
  // size, this throws Unsupported.
  static std::shared_ptr<ProcessGroup> Start(int ranks);
  // Rank 0 waits for the others, which have been told to end, and ends those that do not.
  ~ProcessGroup() override;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  void AllReduce(Stream& stream, const MatrixView& x) override;
  void AllGather(Stream& stream, const MatrixView& own, const MatrixView& all) override;

  // The smallest of all ranks' values, one by one.
  void Minimum(std::span<uint64_t> values);
  // Rank 0's words become those of all ranks. Waits as long as rank 0 sends nothing.
  void Broadcast(std::vector<int64_t>* words);
  // Memory of a rank that all ranks see, for numbers that need not be exact at any moment. Zero at
  // first.
  std::span<uint64_t> board(int rank) const;
  // The first `bytes` bytes of memory that all ranks see, for what is too large for messages. Valid
  // until more is asked for. Rank 0 makes it as large as it asks for, and must do so before the
  // others ask. Throws CapacityError.
  std::span<std::byte> SharedMemory(size_t bytes);
  // Throws RankEnded, with the rank and how it ended, if one has ended.
  void Check() const;
  bool ended() const { return !processes_.ended().empty(); }  // whether one has
  // Calls the function from a thread of its own once a rank has ended too early; for what waits on
  // a GPU. Null: none.
  void OnEnd(std::function<void()> ended) { processes_.OnEnd(std::move(ended)); }

 private:
  // boards, shared_file: made before the ranks.
  ProcessGroup(int rank, int ranks, uint64_t* boards, int shared_file);
  // What Check() throws, once it does; `error`: what was seen.
  [[noreturn]] void ThrowEnded(const char* error) const;
  // Runs a collective operation; a failure becomes what Check() throws.
  void Together(const std::function<void()>& operation) const;

  const int rank_, ranks_;
  uint64_t* boards_ = nullptr;  // [ranks][kBoardWords]
  const int shared_file_;
  std::span<std::byte> shared_;  // the part of the file that is mapped
  // For Broadcast(): rank 0's to each of the others, another rank's to rank 0. They end at once
  // with the process at the other end, which Gloo's connections do not always.
  std::vector<int> channels_;
  RankProcesses processes_;  // of rank 0
  std::shared_ptr<gloo::Context> context_;
};

// The device of a rank: "cuda:N" becomes "cuda:(N + rank)", "auto" the rank's GPU if the machine
// has GPUs. Throws InvalidArgument as OpenMachine() does.
std::string DeviceOfRank(const std::string& device, int rank);

}  // namespace litecache::parallel
