#include "device/sections.h"

#include <chrono>
#include <vector>

#include "base/error.h"
#ifdef LITECACHE_CUDA
#include "device/cuda/mark_events.h"
#endif

namespace litecache {
namespace {

thread_local SectionTimer* running = nullptr;

// On the CPU, operations are complete when they return.
class HostTimes final : public MarkTimes {
 public:
  void Take(Stream&, size_t index) override {
    if (times_.size() <= index) times_.resize(index + 1);
    times_[index] = std::chrono::steady_clock::now();
  }
  double SecondsFrom(size_t index) const override {
    return std::chrono::duration<double>(times_.at(index + 1) - times_.at(index)).count();
  }

 private:
  std::vector<std::chrono::steady_clock::time_point> times_;
};

std::unique_ptr<MarkTimes> MakeTimes(const Stream& stream) {
#ifdef LITECACHE_CUDA
  if (stream.device_type() == DeviceType::kCuda) return MakeMarkEvents();
#endif
  LC_CHECK(stream.device_type() == DeviceType::kCpu);
  return std::make_unique<HostTimes>();
}

}  // namespace

struct SectionTimer::Marks {
  std::unique_ptr<MarkTimes> times;
  std::vector<Section> sections;  // the section that each mark of a step begins
  bool begun = false;             // no mark has been set since BeginStep
};

std::string_view Name(Section section) {
  constexpr std::string_view kNames[kSections] = {
      "rest", "products", "management", "retrieval", "transfer", "attention", "override"};
  return kNames[static_cast<size_t>(section)];
}

void Mark(Stream& stream, Section section) {
  if (running == nullptr || &running->stream_ != &stream) return;
  SectionTimer::Marks& marks = *running->marks_;
  if (marks.begun) {  // the step is issued rather than replayed
    marks.begun = false;
    marks.sections.clear();
  }
  marks.times->Take(stream, marks.sections.size());
  marks.sections.push_back(section);
}

SectionTimer::SectionTimer(Stream& stream) : stream_(stream), marks_(std::make_unique<Marks>()) {
  LC_CHECK(running == nullptr, "two timers on a thread");
  marks_->times = MakeTimes(stream);
  running = this;
}

SectionTimer::~SectionTimer() { running = nullptr; }

void SectionTimer::BeginStep() { marks_->begun = true; }

void SectionTimer::EndStep() {
  stream_.Synchronize();
  marks_->begun = false;
  ++steps_;
  // Time before the first mark and after the last one belongs to no section; the caller measures
  // the whole step.
  span_ = 0;
  for (size_t i = 0; i + 1 < marks_->sections.size(); ++i) {
    const auto section = static_cast<size_t>(marks_->sections[i]);
    const double seconds = marks_->times->SecondsFrom(i);
    span_ += seconds;
    seconds_[section] += seconds;
    ++counts_[section];
  }
}

int64_t SectionTimer::marks() const { return static_cast<int64_t>(marks_->sections.size()); }

}  // namespace litecache
