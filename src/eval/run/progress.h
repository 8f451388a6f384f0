// Progress of a whole evaluation: configurations times lengths times samples.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/progress.h"
#include "model/config.h"

namespace litecache::eval {

// The cost of a prompt, in units of a token without context, so that the estimate of the time left
// is right while short prompts run and long ones follow.
class CostModel {
 public:
  explicit CostModel(const model::ModelConfig& config);
  // `chunked` tokens processed as a prompt, followed by `stepped` ones, one per step.
  double Cost(int64_t chunked, int64_t stepped) const;

 private:
  double attention_ = 0;  // of a token, per token of its context
};

class Progress {
 public:
  // items: samples or windows; cost: the total over all of them.
  Progress(int64_t items, double cost, std::string unit);

  void SetLabel(const std::string& label) { bar_->SetLabel(label); }
  // Shows the finished items plus `running`, the cost already spent on the others.
  void Update(double running) { bar_->Update(items_, cost_ > 0 ? (done_ + running) / cost_ : 0); }
  void Finish(double cost) {
    ++items_;
    done_ += cost;
    Update(0);
  }
  // Corrects the total when items turn out not to exist or to differ.
  void Correct(double cost) { cost_ += cost; }

 private:
  int64_t items_ = 0;
  double done_ = 0;
  double cost_ = 0;
  std::unique_ptr<ProgressBar> bar_;
};

}  // namespace litecache::eval
