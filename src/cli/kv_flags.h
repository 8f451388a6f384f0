// The KV cache's options on the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

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
};

}  // namespace litecache::cli
