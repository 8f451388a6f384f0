// Where a step's time goes: operations name their section (Mark), and a SectionTimer, where
// one runs, measures how long the stream is at each.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "device/device.h"

namespace litecache {

enum class Section : int {
  kRest,        // norms, RoPE, activations, sampling; gaps between operations
  kProducts,    // matrix products
  kManagement,  // lookups, slots, appending and spilling rows
  kRetrieval,   // encoding keys, scoring and selecting rows
  kTransfer,    // rows that the stream waits for
  kAttention,
  kOverride,  // replacing what lookups and selections found
};
inline constexpr int kSections = 7;
// "rest", "products", "management", ...
std::string_view Name(Section section);

// What the operations that this stream is given from here on belong to. Nothing unless a timer runs
// on the calling thread and on this stream.
void Mark(Stream& stream, Section section);

// Of the operations in a scope; what follows is kRest.
class SectionScope {
 public:
  SectionScope(Stream& stream, Section section) : stream_(stream) { Mark(stream, section); }
  ~SectionScope() { Mark(stream_, Section::kRest); }
  SectionScope(const SectionScope&) = delete;
  SectionScope& operator=(const SectionScope&) = delete;

 private:
  Stream& stream_;
};

// Times at the marks of a stream's steps; implemented a backend.
class MarkTimes {
 public:
  virtual ~MarkTimes() = default;
  // The time when the stream gets here becomes the `index`-th of the step. May be recorded in a
  // graph: each replay sets it anew.
  virtual void Take(Stream& stream, size_t index) = 0;
  // Seconds between the index-th and the next, of the last step that was waited for.
  virtual double SecondsFrom(size_t index) const = 0;
};

// On a GPU marks are events in the stream and in recorded graphs; each costs the step about a
// microsecond. One a thread at a time. Graphs that were recorded without must be dropped before,
// and those recorded with it after.
class SectionTimer {
 public:
  // The stream must outlive this.
  explicit SectionTimer(Stream& stream);
  ~SectionTimer();
  SectionTimer(const SectionTimer&) = delete;
  SectionTimer& operator=(const SectionTimer&) = delete;

  // Around each step. EndStep waits for it and adds its times up; a step that is replayed has the
  // marks it was recorded with.
  void BeginStep();
  void EndStep();

  int64_t steps() const { return steps_; }
  int64_t marks() const;  // of a step
  // Seconds from the first mark of the last step to its last one.
  double span() const { return span_; }
  // Sums over the steps, seconds and marks, [kSections].
  const std::array<double, kSections>& seconds() const { return seconds_; }
  const std::array<int64_t, kSections>& counts() const { return counts_; }

 private:
  friend void Mark(Stream& stream, Section section);
  struct Marks;

  Stream& stream_;
  std::unique_ptr<Marks> marks_;
  int64_t steps_ = 0;
  double span_ = 0;
  std::array<double, kSections> seconds_{};
  std::array<int64_t, kSections> counts_{};
};

}  // namespace litecache
