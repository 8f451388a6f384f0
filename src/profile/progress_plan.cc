#include "profile/progress_plan.h"

#include <algorithm>
#include <utility>

#include "profile/profiler.h"

namespace litecache::profile {

ProgressPlan::ProgressPlan(const model::ModelConfig& config,
                           const std::vector<std::vector<int32_t>>& windows,
                           const ProfilerOptions& options,
                           std::function<void(double share, const std::string& what)> progress)
    : config_(config),
      options_(options),
      iterations_(static_cast<double>(std::max<int64_t>(options.hata.iterations, 1))),
      progress_(std::move(progress)) {
  const auto heads = static_cast<double>(config.layers * config.kv_heads);
  for (const auto& window : windows) {
    const auto n = static_cast<int64_t>(window.size());
    total_ += ForwardWork(n, n) + heads * HeadWork(n);
  }
  for (const int64_t bits : options.hata_bits) total_ += heads * HataWork(bits);
  total_ = std::max(total_, 1.0);
}

double ProgressPlan::ForwardWork(int64_t tokens, int64_t done) const {
  const auto t = static_cast<double>(std::min(done, tokens));
  return 2 * static_cast<double>(config_.parameters()) * t +
         2 * static_cast<double>(config_.layers * config_.q_width()) * t * t;
}

double ProgressPlan::HeadWork(int64_t tokens) const {
  // Products, then exponentials and selections at a fraction of their rate: together 4 times the
  // products' time on the machine used for the measurement.
  const auto scores =
      static_cast<double>(options_.steps * config_.group()) * static_cast<double>(tokens);
  return 4 * 2 * 2 * scores * static_cast<double>(config_.head_dim);
}

double ProgressPlan::HataWork(int64_t bits) const {
  const auto keys = static_cast<double>(options_.hata_keys);
  const auto queries = static_cast<double>(options_.hata_queries * config_.group());
  const auto d = static_cast<double>(config_.head_dim);
  return iterations_ * 4 * static_cast<double>(bits) * (keys * queries + (keys + queries) * d);
}

void ProgressPlan::Report(double extra, const char* what) {
  if (progress_) progress_(std::min((done_ + extra) / total_, 1.0), what);
}

void ProgressPlan::Add(double work, const char* what) {
  done_ += work;
  Report(0, what);
}

}  // namespace litecache::profile
