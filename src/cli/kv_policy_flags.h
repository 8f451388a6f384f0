// Options of the KV policies that litecache is compared with, a group of the help each.
#pragma once

#include <CLI/CLI.hpp>

#include "litecache/kv_options.h"

namespace litecache::cli {

void DeclareKvPolicyFlags(CLI::App& app, KvOptions* options);

}  // namespace litecache::cli
