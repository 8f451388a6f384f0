// The output of `litecache bench`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/machine.h"
#include "bench/runner.h"
#include "bench/subject.h"

namespace litecache::cli {

struct BenchReport {
  const bench::Subject& subject;
  const Device& device;
  bench::MachineRates rates;
  std::string fill;    // how the KV rows of decode were made
  std::string remark;  // a line below the head, or empty
  bool gpu = false;
  int64_t decode_steps = 1;

  nlohmann::ordered_json HeaderJson() const;
  std::string HeaderText() const;
  std::string PrefillHead() const;
  std::string PrefillRow(const std::string& policy, const bench::Measurement& m) const;
  std::string DecodeHead() const;
  // Includes the breakdown if it was measured.
  std::string DecodeRow(const std::string& policy, bool graphs, const bench::Measurement& m) const;

 private:
  std::string BreakdownText(const bench::Measurement& m) const;
};

}  // namespace litecache::cli
