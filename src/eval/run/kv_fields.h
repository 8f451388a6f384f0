// KvOptions as names and texts: for configurations given on the command line, result files and
// messages.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "litecache/kv_options.h"

namespace litecache::eval {

struct KvField {
  std::string_view name;                         // the member of KvOptions
  std::string (*get)(const KvOptions& options);  // what `set` reads
  // Throws InvalidArgument naming the field and the text.
  void (*set)(KvOptions& options, const std::string& text);
};

// Every field, in the order of the declaration.
std::span<const KvField> KvFields();

// The member, or its flag without the dashes ("sink" is sink_tokens); '-' and '_' are the same.
// Throws InvalidArgument for an unknown name, listing the names.
const KvField& FindKvField(std::string_view name);

}  // namespace litecache::eval
