// The KV cache's options on the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/values.h"
#include "litecache/kv_options.h"

namespace litecache::cli {

struct KvFlags {
  KvOptions options;
  std::string budget = "10%";
  ByteCount device_memory;
  ByteCount host_memory;

  void Declare(CLI::App& app);
  // Throws InvalidArgument.
  KvOptions ToKvOptions() const;
  // Of the options that were given, those that the policy does nothing with. For commands that run
  // one policy.
  std::vector<std::string> Unused() const;
  // Says so in the log.
  void WarnOfUnused() const;

 private:
  const CLI::App* app_ = nullptr;
};

}  // namespace litecache::cli
