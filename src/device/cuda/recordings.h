// The recordings of a stream: the most recently used ones.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>

struct CUgraphExec_st;

namespace litecache {

// Steps by their keys, at most `limit` of them; the least recently used ones are dropped first. A
// step that may be running is kept, even beyond the limit.
class Recordings {
 public:
  using Destroy = void (*)(CUgraphExec_st* graph);
  struct Step {
    uint64_t key = 0;
    CUgraphExec_st* graph = nullptr;  // null: seen, not recorded
    uint64_t launch = 0;              // the number of its last launch; 0: none
    // Seconds that its last launches took, newest first, for those that were waited for; 0: none.
    std::array<double, 4> seconds{};
  };

  Recordings(size_t limit, Destroy destroy) : limit_(limit), destroy_(destroy) {}
  ~Recordings() { Clear(); }
  Recordings(const Recordings&) = delete;
  Recordings& operator=(const Recordings&) = delete;

  // The step of a key, which becomes the most recently used one; null the first time that a key is
  // used. The caller may attach a graph to the step. The pointer is valid until the next call.
  Step* Use(uint64_t key);
  // Call when the step's graph has been launched; `begun`: when the GPU became free for it, as far
  // as is known. Steps that follow another before a wait belong to it: a model's step and the
  // choice of its tokens are waited for together.
  void Launched(Step& step, std::chrono::steady_clock::time_point begun);
  // The first step launched since the last Finished(); null if there is none, or if Use() has since
  // returned null, because more than recorded steps is waited for then.
  const Step* pending() const { return pending_; }
  // launches: launches(), read before waiting for the stream. seconds: the time of the pending
  // step and of those behind it, by the GPU's clock. By the waiting thread's clock, a step would
  // seem to take as long as a sleep that was too long, and the next sleep would be as long: a
  // policy whose first steps find an empty cache lost 40% of its speed at 64 x 8K.
  void Finished(uint64_t launches, std::optional<double> seconds = {});
  // Seconds from now until the pending step should end, judged by the shortest of its last times;
  // no value if no time is known.
  std::optional<double> Remaining() const;
  uint64_t launches() const { return launched_; }

  // The number of steps, recorded or only seen.
  size_t size() const { return steps_.size(); }
  void Clear();

 private:
  void MakeRoom();
  void Drop(std::list<Step>::iterator step);

  size_t limit_;
  Destroy destroy_;
  std::list<Step> steps_;  // the one used last first
  std::unordered_map<uint64_t, std::list<Step>::iterator> of_key_;
  uint64_t launched_ = 0, finished_ = 0;
  Step* pending_ = nullptr;
  std::chrono::steady_clock::time_point begun_;
};

}  // namespace litecache
