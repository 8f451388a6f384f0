// A second stream beside a stream: operations that run while the first goes on, of the same
// recording where the first is being recorded.
#pragma once

#include <memory>
#include <vector>

#include "device/cuda/cuda_device.h"

struct CUevent_st;

namespace litecache {

// Operations of the branch run in their order. What was forked has to be joined before a recording
// ends.
class CudaBranch {
 public:
  // marks: how many of Mark()'s. first: its blocks before those of other streams where the GPU has
  // to choose, which is for few blocks that others should not have to wait for.
  CudaBranch(CudaDevice& device, int marks, bool first);
  // On a stream that has been made for it (sm_split.h).
  CudaBranch(std::unique_ptr<CudaStream> stream, int marks);
  // Waits for the branch.
  ~CudaBranch();
  CudaBranch(const CudaBranch&) = delete;
  CudaBranch& operator=(const CudaBranch&) = delete;

  Stream& stream() { return *stream_; }
  // What the branch is given from here on waits for what `main`, a stream or another branch's, has
  // been given so far.
  void Fork(Stream& main);
  // Names what the branch has been given so far; `mark` then means this and nothing before.
  void Mark(int mark);
  // What `main` is given from here on waits for the work of `mark`. A mark that was never made has
  // no work.
  void Join(Stream& main, int mark);
  // Joins all the branch has been given.
  void JoinAll(Stream& main);
  // Forgets marks and waits, on the host, for what was forked and not joined as a whole: the rest
  // of a step that has failed.
  void Reset();

 private:
  struct Event {
    CUevent_st* handle = nullptr;
    bool made = false;
  };
  CudaStream& cuda() { return AsCuda(*stream_); }

  std::unique_ptr<Stream> stream_;
  CUevent_st* fork_ = nullptr;
  CUevent_st* end_ = nullptr;
  std::vector<Event> marks_;
  bool open_ = false;  // work may be under way that nobody has joined
};

}  // namespace litecache
