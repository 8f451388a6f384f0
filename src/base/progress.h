// A progress bar for long work, on terminals only.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace litecache {

// A one-line bar on standard error: "Prefill  [####----]  4096/16384 tokens  812 tok/s  15 s left".
// Redrawn at most ten times a second; silent when standard error is not a terminal or after
// Quiet(true).
class ProgressBar {
 public:
  ProgressBar(std::string label, int64_t total, std::string unit);
  // Clears the line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void Update(int64_t done);
  // For work whose items take different times: `share`, in [0, 1], is the fraction of the total
  // time that has passed; the bar and the time left follow it.
  void Update(int64_t done, double share);
  void SetLabel(std::string label) { label_ = std::move(label); }
  void Add(int64_t amount) { Update(done_ + amount); }
  void Finish();

  // Turns all bars of the process off (--quiet, --json).
  static void Quiet(bool quiet);

 private:
  void Draw(bool last);

  std::string label_;
  int64_t total_;
  std::string unit_;
  int64_t done_ = 0;
  double share_ = 0;
  bool visible_ = false;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_draw_;
};

}  // namespace litecache
