// The recordings of a stream: as many as were of use last.
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

// Steps by their keys, at most `limit` of them: for more, those go that were used longest ago. One
// that may be running stays, even beyond the limit.
class Recordings {
 public:
  using Destroy = void (*)(CUgraphExec_st* graph);
  struct Step {
    uint64_t key = 0;
    CUgraphExec_st* graph = nullptr;  // null: seen, not recorded
    uint64_t launch = 0;              // the last one's number; 0: none
    // What its last launches took until somebody who waited for nothing else knew, the last one
    // first; 0: unknown.
    std::array<double, 4> seconds{};
  };

  Recordings(size_t limit, Destroy destroy) : limit_(limit), destroy_(destroy) {}
  ~Recordings() { Clear(); }
  Recordings(const Recordings&) = delete;
  Recordings& operator=(const Recordings&) = delete;

  // The step of a key, used last from now on; null: it has not been seen, but is from now on. The
  // step may be given a graph, and lives until the next call.
  Step* Use(uint64_t key);
  // The step's graph is about to be launched.
  void Launch(Step& step);
  // `launches`: launches(), taken before the stream was waited for. `overslept`: the step had ended
  // before anybody looked. What it takes is unknown then, and so is what it took before: it has
  // become shorter.
  void Finished(uint64_t launches, bool overslept = false);
  // Seconds from now until the step launched last should have ended, by the shortest of its last
  // times; none where one of them is not known, or Use() or Finished() have been called since.
  std::optional<double> Remaining() const;
  uint64_t launches() const { return launched_; }

  // Steps, recorded or seen.
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
  Step* pending_ = nullptr;  // launched last
  std::chrono::steady_clock::time_point launched_at_;
};

}  // namespace litecache
