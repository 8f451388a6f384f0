// Decides when a thread that waits for a recorded step sleeps and when it spins. Waking up takes
// tens to hundreds of microseconds, depending on the machine, during which the GPU has no next
// step.
#pragma once

#include <algorithm>

namespace litecache {

class StepWait {
 public:
  // Waits shorter than this only spin, and no wait spins for longer than this before its end.
  static constexpr double kSpinSeconds = 1e-3;

  struct Plan {
    double sleep = 0;        // seconds from now; 0: no sleep
    double awake_until = 0;  // seconds from now; after this the thread sleeps until the end
  };

  // The plan for a step that should end in `left` seconds: awake from 5% of that before its end to
  // 5% after it, since steps vary by that much, and earlier by as much as wake-ups have been late,
  // but by 8% at most: waiting must take no more than a tenth of a core.
  Plan For(double left) const {
    const double margin = std::min(kSpinSeconds, kShare * left);
    const double early = std::min({kSpinSeconds, kMostShare * left, margin + late_});
    return {.sleep = left > kSpinSeconds ? left - early : 0,
            .awake_until = std::max(kSpinSeconds, left + margin)};
  }

  // Reports that a sleep has ended `late` seconds after it should have.
  void Woke(double late) { late_ = std::max(late, kKept * late_); }

 private:
  static constexpr double kShare = 0.05, kMostShare = 0.08;
  static constexpr double kKept = 0.9;  // the part of a lateness that remains one step later
  double late_ = 0;
};

}  // namespace litecache
