// A second stream beside a main one: its operations run while the main stream continues, and become
// part of the same recording if the main stream is being recorded.
#pragma once

#include <memory>
#include <vector>

#include "device/cuda/cuda_device.h"

struct CUevent_st;

namespace litecache {

// Operations on the branch run in order. Forked work must be joined before a recording of the main
// stream ends.
class CudaBranch {
 public:
  // marks: how many marks Mark() can set. first: gives its blocks priority over those of other
  // streams, for kernels of few blocks that other work should not have to wait for.
  CudaBranch(CudaDevice& device, int marks, bool first);
  // Uses a stream that was made for it (sm_split.h).
  CudaBranch(std::unique_ptr<CudaStream> stream, int marks);
  // Waits for the branch.
  ~CudaBranch();
  CudaBranch(const CudaBranch&) = delete;
  CudaBranch& operator=(const CudaBranch&) = delete;

  Stream& stream() { return *stream_; }
  // Work enqueued on the branch from here on waits for all work enqueued so far on `main`, a stream
  // or another branch's stream.
  void Fork(Stream& main);
  // Marks the work enqueued on the branch so far; replaces an earlier meaning of `mark`.
  void Mark(int mark);
  // Work enqueued on `main` from here on waits for the branch's work up to `mark`. A mark that was
  // never set stands for no work.
  void Join(Stream& main, int mark);
  // Joins all work enqueued on the branch.
  void JoinAll(Stream& main);
  // Clears the marks and waits, on the host, for work that was forked and not joined completely:
  // the rest of a step that has failed.
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
  bool open_ = false;  // forked work may be running that has not been joined
};

}  // namespace litecache
