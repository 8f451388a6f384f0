// When a thread that waits for a recorded step sleeps, and when it is awake. To wake a thread takes
// tens to hundreds of microseconds, by the machine, in which the GPU has no next step.
#pragma once

#include <algorithm>

namespace litecache {

class StepWait {
 public:
  // Waits shorter than this are not slept, and no wait is awake for longer before its end.
  static constexpr double kSpinSeconds = 1e-3;

  struct Plan {
    double sleep = 0;        // seconds from now; 0: not at all
    double awake_until = 0;  // seconds from now; what ends later is slept for to its end
  };

  // For a step that should end in `left` seconds. Awake for 5% of that before its end and as long
  // behind it, since steps differ by so much, and earlier by as much as threads wake late, but for
  // no more than 8% before it: no more than a tenth of a core shall wait.
  Plan For(double left) const {
    const double margin = std::min(kSpinSeconds, kShare * left);
    const double early = std::min({kSpinSeconds, kMostShare * left, margin + late_});
    return {.sleep = left > kSpinSeconds ? left - early : 0,
            .awake_until = std::max(kSpinSeconds, left + margin)};
  }

  // A sleep has ended so many seconds later than it should have.
  void Woke(double late) { late_ = std::max(late, kKept * late_); }

 private:
  static constexpr double kShare = 0.05, kMostShare = 0.08;
  static constexpr double kKept = 0.9;  // of a lateness, a step later
  double late_ = 0;
};

}  // namespace litecache
