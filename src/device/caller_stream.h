// Where a program that uses this library has a CUDA stream of its own. Free of CUDA's headers.
#pragma once

#include <memory>

#include "device/device.h"

namespace litecache {

// Orders the work of one of our streams among that of a caller's stream, which stays the caller's.
// Not for streams that are being captured.
class CallerStream {
 public:
  virtual ~CallerStream() = default;
  // The caller's stream from here on (OrderWithCaller). Not between Enter() and Leave().
  virtual void Use(void* handle) = 0;
  // At the beginning of a call: our work waits for all that the caller has enqueued so far, and the
  // stream's GPU becomes the thread's.
  virtual void Enter() = 0;
  // At its end: what the caller enqueues from here on waits for our work, and the thread has the
  // caller's GPU again. Errors appear when our stream is waited for.
  virtual void Leave() noexcept = 0;
};

// device: the GPU of `own`, a stream of ours that outlives this object. handle: a cudaStream_t of
// the same GPU; null: the default stream.
std::unique_ptr<CallerStream> OrderWithCaller(Device& device, Stream& own, void* handle);

// Gives the thread its current GPU back at the end of a scope in which others are opened.
class KeepsCurrentGpu {
 public:
  KeepsCurrentGpu();
  ~KeepsCurrentGpu();  // NOLINT(performance-trivially-destructible): with CUDA it is not
  KeepsCurrentGpu(const KeepsCurrentGpu&) = delete;
  KeepsCurrentGpu& operator=(const KeepsCurrentGpu&) = delete;

 private:
  int gpu_ = -1;  // -1: there is none
};

}  // namespace litecache
