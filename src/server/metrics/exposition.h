// Prometheus's text format. Hand-written: only the four kinds of lines below are needed, and
// prometheus-cpp would add a second HTTP server.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace litecache::server {

using Labels = std::initializer_list<std::pair<std::string_view, std::string>>;

// Counts observations by size.
class Histogram {
 public:
  // `bounds`: upper bounds, ascending; values above the last are counted too.
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
  // Writes the head of a metric family; its samples follow. type: "counter", "gauge" or
  // "histogram".
  void Family(std::string_view name, std::string_view type, std::string_view help);
  void Sample(std::string_view name, Labels labels, double value);
  void Sample(std::string_view name, double value) { Sample(name, {}, value); }
  // Writes a family with its samples.
  void Add(std::string_view name, const Histogram& histogram, std::string_view help);

  std::string text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace litecache::server
