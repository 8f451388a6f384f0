#include "base/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <utility>

#include "base/units.h"

namespace litecache {
namespace {

std::atomic<bool> quiet{false};

int TerminalWidth() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

void ProgressBar::Quiet(bool value) { quiet = value; }

ProgressBar::ProgressBar(std::string label, int64_t total, std::string unit)
    : label_(std::move(label)),
      total_(std::max<int64_t>(total, 1)),
      unit_(std::move(unit)),
      visible_(!quiet && isatty(STDERR_FILENO)),
      start_(std::chrono::steady_clock::now()) {}

ProgressBar::~ProgressBar() { Finish(); }

void ProgressBar::Update(int64_t done) {
  Update(done, static_cast<double>(done) / static_cast<double>(total_));
}

void ProgressBar::Update(int64_t done, double share) {
  done_ = done;
  share_ = std::clamp(share, 0.0, 1.0);
  if (!visible_) return;
  const auto now = std::chrono::steady_clock::now();
  if (drawn_ && now - last_draw_ < std::chrono::milliseconds(100)) return;
  last_draw_ = now;
  Draw(false);
}

void ProgressBar::Finish() {
  if (!drawn_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
  visible_ = false;
}

void ProgressBar::Draw(bool) {
  const double elapsed =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const double rate = elapsed > 0 ? static_cast<double>(done_) / elapsed : 0;
  const bool bytes = unit_ == "B";
  const auto amount = [&](double value) {
    return bytes ? FormatBytes(static_cast<uint64_t>(value)) : fmt::format("{:.0f}", value);
  };
  std::string tail = bytes ? fmt::format("  {}/{}  {}/s", amount(static_cast<double>(done_)),
                                         amount(static_cast<double>(total_)), amount(rate))
                           : fmt::format("  {}/{} {}  {}/s", done_, total_, unit_,
                                         rate < 9.5 ? fmt::format("{:.2g}", rate) : amount(rate));
  if (share_ > 0 && elapsed > 1) {
    tail += fmt::format("  {} left", FormatSeconds(elapsed / share_ * (1 - share_)));
  }
  const int width = TerminalWidth();
  const int room = std::clamp(width - static_cast<int>(label_.size() + tail.size()) - 5, 0, 40);
  const int filled = static_cast<int>(room * share_);
  std::string line = label_;
  if (room >= 8)
    line += "  [" + std::string(static_cast<size_t>(filled), '#') +
            std::string(static_cast<size_t>(room - filled), '-') + "]";
  line += tail;
  if (static_cast<int>(line.size()) >= width)
    line.resize(static_cast<size_t>(std::max(width - 1, 1)));
  std::fputs(("\r\033[K" + line).c_str(), stderr);
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace litecache
