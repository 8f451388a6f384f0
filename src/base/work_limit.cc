#include "base/work_limit.h"

#include <ctime>
#include <utility>

namespace litecache {
namespace {

std::chrono::nanoseconds ThreadTime() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

constinit thread_local WorkLimit* WorkLimit::current_ = nullptr;

WorkLimit::WorkLimit(std::chrono::milliseconds cpu, std::function<bool()> cancelled)
    : outer_(std::exchange(current_, this)),
      limit_(cpu),
      end_(ThreadTime() + cpu),
      cancelled_(std::move(cancelled)) {}

void WorkLimit::Look() {
  left_ = kBetweenLooks;
  if (outer_ != nullptr) outer_->Look();
  if (cancelled_ && cancelled_()) throw WorkStopped("the work was cancelled", true);
  if (ThreadTime() > end_) {
    const double seconds = std::chrono::duration<double>(limit_).count();
    throw WorkStopped(
        fmt::format(
            "preparing the request takes more than {} s of CPU time: send less, or a simpler "
            "grammar or schema",
            seconds),
        false);
  }
}

}  // namespace litecache
