// Progress of a whole evaluation: configurations times lengths times samples.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/progress.h"
#include "model/config.h"

namespace litecache::eval {

// What a prompt costs, in the time of a token without context: so that the time left is right while
// short prompts run and long ones are to come.
class CostModel {
 public:
  explicit CostModel(const model::ModelConfig& config);
  // `chunked` tokens processed as a prompt, then `stepped` ones, one a step.
  double Cost(int64_t chunked, int64_t stepped) const;

 private:
  double attention_ = 0;  // of a token, for each token of its context
};

class Progress {
 public:
  // items: samples or windows; cost: of all of them.
  Progress(int64_t items, double cost, std::string unit);

  void SetLabel(const std::string& label) { bar_->SetLabel(label); }
  // Items that are done, and `running` of the cost of those that are not.
  void Update(double running) { bar_->Update(items_, cost_ > 0 ? (done_ + running) / cost_ : 0); }
  void Finish(double cost) {
    ++items_;
    done_ += cost;
    Update(0);
  }
  // Items that turned out not to exist, or to be others.
  void Correct(double cost) { cost_ += cost; }

 private:
  int64_t items_ = 0;
  double done_ = 0;
  double cost_ = 0;
  std::unique_ptr<ProgressBar> bar_;
};

}  // namespace litecache::eval
