// The options of the engine and of the KV cache as tables with one row per option. The command
// line, `--config`, JSON, validation and the reference are made from them; other front ends can be,
// too.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace litecache {

struct EngineOptions;
struct KvOptions;

// How error messages name an option: "option threads" or "--threads".
enum class OptionNames { kMembers, kFlags };

// An option's names and meaning.
struct OptionInfo {
  // Name of the member: "sink_tokens", "kvpr.split"; the key in --config and JSON.
  std::string name;
  std::string flag = {};  // "-t,--threads"; if the table leaves it empty: "--" and the name
  // Type of the value, for the help: TOKENS, SIZE, SHARE, N, X, NAME, FILE, DIR.
  std::string type = {};
  std::string values = {};  // valid values: "0 to 1", "auto, sum, softmax"
  std::string help = {};
  std::string group = {};                  // heading in the help
  std::vector<std::string> policies = {};  // KV policies that read it; empty: all
  bool common = false;                     // shown in the short help
  bool is_flag = false;                    // takes no value on the command line; as text: on or off
  bool programs_only = false;              // not available on the command line

  bool AppliesTo(std::string_view policy) const;
  // The long flag: "--threads" of "-t,--threads".
  std::string LongFlag() const;
  std::string NameIn(OptionNames names) const;
};

// An option of struct S.
template <class S>
struct Option : OptionInfo {
  // The value as text, in the form that `set` reads.
  std::function<std::string(const S& options)> get;
  // Sets the value from text. Throws InvalidArgument, which names `who`, the text and the valid
  // values, for text that is no value, values out of range, and NaN.
  std::function<void(S& options, const std::string& text, std::string_view who)> set;
};

// One row per member, including the rows of the registered KV policies (kv/api/policy_registry.h).
std::span<const Option<KvOptions>> KvOptionTable();
// The engine's own options, then those of EngineOptions.kv.
std::span<const Option<EngineOptions>> EngineOptionTable();

namespace internal {
// Whether `name` is the option's name, or its flag without the dashes; '-' and '_' are equal.
bool IsNamed(const OptionInfo& option, std::string_view name);
[[noreturn]] void ThrowUnknownOption(std::string_view name, const std::vector<std::string>& names);
}  // namespace internal

// Finds an option by name, or by flag without the dashes ("sink" is sink_tokens). Throws
// InvalidArgument, which lists the valid names.
template <class S>
const Option<S>& FindOption(std::span<const Option<S>> table, std::string_view name) {
  std::vector<std::string> names;
  for (const Option<S>& option : table) {
    if (internal::IsNamed(option, name)) return option;
    names.push_back(option.name);
  }
  internal::ThrowUnknownOption(name, names);
}

// Throws InvalidArgument for the first value that is out of range or not among its choices.
template <class S>
void CheckOptions(std::span<const Option<S>> table, const S& options, OptionNames names) {
  S copy = options;
  for (const Option<S>& option : table) {
    option.set(copy, option.get(options), option.NameIn(names));
  }
}

}  // namespace litecache
