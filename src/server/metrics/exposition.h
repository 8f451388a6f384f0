// Prometheus's text format. Written by hand: the four kinds of lines below are all that is needed,
// and prometheus-cpp would bring a second HTTP server with it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace litecache::server {

using Labels = std::initializer_list<std::pair<std::string_view, std::string>>;

// Counts of observations by size.
class Histogram {
 public:
  // Upper bounds, ascending; what is above the last is counted, too.
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void Observe(double value);
  uint64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  friend class Exposition;
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;
  uint64_t count_ = 0;
  double sum_ = 0;
};

class Exposition {
 public:
  // A family's head; its samples follow. type: "counter", "gauge" or "histogram".
  void Family(std::string_view name, std::string_view type, std::string_view help);
  void Sample(std::string_view name, Labels labels, double value);
  void Sample(std::string_view name, double value) { Sample(name, {}, value); }
  // Family and samples.
  void Add(std::string_view name, const Histogram& histogram, std::string_view help);

  std::string text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace litecache::server
