#include "server/metrics/exposition.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace litecache::server {
namespace {

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

std::string EscapeLabel(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\' || c == '"') result += '\\';
    c == '\n' ? result += "\\n" : result += c;
  }
  return result;
}

}  // namespace

void Histogram::Observe(double value) {
  const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++counts_[static_cast<size_t>(bound - bounds_.begin())];
  ++count_;
  sum_ += value;
}

void Exposition::Family(std::string_view name, std::string_view type, std::string_view help) {
  text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

void Exposition::Sample(std::string_view name, Labels labels, double value) {
  text_ += name;
  char separator = '{';
  for (const auto& [key, label] : labels) {
    text_ += fmt::format("{}{}=\"{}\"", separator, key, EscapeLabel(label));
    separator = ',';
  }
  if (separator == ',') text_ += '}';
  text_ += ' ';
  text_ += Number(value);
  text_ += '\n';
}

void Exposition::Add(std::string_view name, const Histogram& histogram, std::string_view help) {
  Family(name, "histogram", help);
  const std::string bucket = fmt::format("{}_bucket", name);
  uint64_t below = 0;
  for (size_t i = 0; i < histogram.bounds_.size(); ++i) {
    below += histogram.counts_[i];
    Sample(bucket, {{"le", Number(histogram.bounds_[i])}}, static_cast<double>(below));
  }
  Sample(bucket, {{"le", "+Inf"}}, static_cast<double>(histogram.count_));
  Sample(fmt::format("{}_sum", name), histogram.sum_);
  Sample(fmt::format("{}_count", name), static_cast<double>(histogram.count_));
}

}  // namespace litecache::server
