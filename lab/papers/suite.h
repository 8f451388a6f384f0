// The papers' evaluation: measures the missing cells. lab/tools/papers_page.py makes the page.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lab/papers/experiment.h"
#include "lab/papers/lab.h"

namespace litecache::bench::papers {

struct SuiteOptions {
  Grid grid;
  LabOptions lab;
  // papers/: suite.json (what is measured and how), machine.json, cells/ (one file per
  // measurement).
  std::filesystem::path output;
  // No measurement starts after this time; below 0: no limit. The next run measures what is
  // missing.
  double seconds = -1;
  std::string command;                                // as typed, for the page
  std::string version;                                // of the program, for the cells
  std::vector<std::string> experiments;               // names; empty: all
  std::vector<std::string> systems;                   // to be measured; empty: all
  std::function<void(const std::string& line)> note;  // progress messages for the user
  std::function<bool()> interrupted;
};

struct SuiteResult {
  int64_t cells = 0, measured = 0, kept = 0, skipped = 0, left = 0;
  std::filesystem::path folder;  // output/papers
};

// Throws InvalidArgument for an unknown experiment or system, FileError for the directory,
// DeviceError if the device fails; measurements made before are kept.
SuiteResult RunSuite(const SuiteOptions& options);

}  // namespace litecache::bench::papers
