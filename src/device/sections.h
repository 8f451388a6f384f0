// Measures a step's time by section: operations name their section (Mark), and a SectionTimer, if
// one runs, measures how long the stream spends in each.
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
  kOverride,  // replacing the results of lookups and selections
};
inline constexpr int kSections = 7;
// "rest", "products", "management", ...
std::string_view Name(Section section);

// Sets the section of the operations enqueued on this stream from here on. Does nothing unless a
// timer runs on the calling thread and for this stream.
void Mark(Stream& stream, Section section);

// Marks the operations in a scope; those after it belong to kRest.
class SectionScope {
 public:
  SectionScope(Stream& stream, Section section) : stream_(stream) { Mark(stream, section); }
  ~SectionScope() { Mark(stream_, Section::kRest); }
  SectionScope(const SectionScope&) = delete;
  SectionScope& operator=(const SectionScope&) = delete;

 private:
  Stream& stream_;
};

// Times at the marks of a stream's steps; implemented by each backend.
class MarkTimes {
 public:
  virtual ~MarkTimes() = default;
  // Stores the time at which the stream reaches this point as the `index`-th of the step. May be
  // recorded in a graph; each replay stores a new time.
  virtual void Take(Stream& stream, size_t index) = 0;
  // Seconds from the index-th time to the next, in the last step that was waited for.
  virtual double SecondsFrom(size_t index) const = 0;
};

// On a GPU marks are events in the stream and in recorded graphs; each costs the step about a
// microsecond. One timer per thread at a time. Graphs recorded without a timer must be dropped
// before it starts, and those recorded with it after it ends.
class SectionTimer {
 public:
  // The stream must outlive this object.
  explicit SectionTimer(Stream& stream);
  ~SectionTimer();
  SectionTimer(const SectionTimer&) = delete;
  SectionTimer& operator=(const SectionTimer&) = delete;

  // Called around each step. EndStep waits for the step and adds up its times; a step that is
  // replayed has the marks it was recorded with.
  void BeginStep();
  void EndStep();

  int64_t steps() const { return steps_; }
  int64_t marks() const;  // per step
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
