// Progress of a profile: the work of its phases in arithmetic operations, estimated before they
// start.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/config.h"

namespace litecache::profile {

struct ProfilerOptions;

class ProgressPlan {
 public:
  ProgressPlan(const model::ModelConfig& config, const std::vector<std::vector<int32_t>>& windows,
               const ProfilerOptions& options,
               std::function<void(double share, const std::string& what)> progress);

  // `done` of a window's tokens have been processed by the model; EndForward: all of them.
  void Forward(int64_t tokens, int64_t done) { Report(ForwardWork(tokens, done), "reading"); }
  void EndForward(int64_t tokens) { Add(ForwardWork(tokens, tokens), "comparing"); }
  // A head of a window of `tokens` tokens has been simulated.
  void Head(int64_t tokens) { Add(HeadWork(tokens), "comparing"); }
  // `done` iterations for a head's projections have run; EndHata: all of them.
  void Hata(int64_t bits, int64_t done) {
    Report(HataWork(bits) * static_cast<double>(done) / iterations_, "training");
  }
  void EndHata(int64_t bits) { Add(HataWork(bits), "training"); }
  void Finish() { Add(0, "done"); }

 private:
  double ForwardWork(int64_t tokens, int64_t done) const;
  double HeadWork(int64_t tokens) const;
  double HataWork(int64_t bits) const;
  void Report(double extra, const char* what);
  void Add(double work, const char* what);

  const model::ModelConfig& config_;
  const ProfilerOptions& options_;
  double iterations_ = 1;
  std::function<void(double share, const std::string& what)> progress_;
  double total_ = 0;
  double done_ = 0;
};

}  // namespace litecache::profile
