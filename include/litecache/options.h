// The options of the engine and of the KV cache as tables: one row an option, from which the
// command line, `--config`, JSON, validation and the reference are made. A program's own front end
// can be made from them, too.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace litecache {

struct EngineOptions;
struct KvOptions;

// How errors call an option: "option threads" or "--threads".
enum class OptionNames { kMembers, kFlags };

// What an option is called and what it means.
struct OptionInfo {
  std::string name;  // of the member: "sink_tokens", "kvpr.split"; the key in --config and JSON
  std::string flag = {};  // "-t,--threads"; where a row leaves it empty: "--" and the name
  std::string type = {};  // of the value, for the help: TOKENS, SIZE, SHARE, N, X, NAME, FILE, DIR
  std::string values = {};  // what it may be, in words: "0 to 1", "auto, sum, softmax"
  std::string help = {};
  std::string group = {};                  // heading in the help
  std::vector<std::string> policies = {};  // KV policies that read it; empty: all
  std::string environment = {};            // a variable that the command line reads instead
  bool common = false;                     // in the short help
  bool is_flag = false;                    // takes no value on the command line; text: on or off
  bool programs_only = false;              // not on the command line

  bool AppliesTo(std::string_view policy) const;
  // "--threads" of "-t,--threads".
  std::string LongFlag() const;
  std::string NameIn(OptionNames names) const;
};

// An option of the struct S.
template <class S>
struct Option : OptionInfo {
  // The value as text that `set` reads.
  std::function<std::string(const S& options)> get;
  // Throws InvalidArgument, which names `who`, the text and what it has to be: text that is no
  // value, values out of range, NaN.
  std::function<void(S& options, const std::string& text, std::string_view who)> set;
};

// A row for every member, with the rows of the KV policies that are registered
// (kv/api/policy_registry.h).
std::span<const Option<KvOptions>> KvOptionTable();
// The engine's own, then those of EngineOptions.kv.
std::span<const Option<EngineOptions>> EngineOptionTable();

namespace internal {
// Whether `name` is the row's name or its flag without the dashes; '-' and '_' are the same.
bool IsNamed(const OptionInfo& option, std::string_view name);
[[noreturn]] void ThrowUnknownOption(std::string_view name, const std::vector<std::string>& names);
}  // namespace internal

// By name, or by flag without the dashes ("sink" is sink_tokens). Throws InvalidArgument, with the
// names there are.
template <class S>
const Option<S>& FindOption(std::span<const Option<S>> table, std::string_view name) {
  std::vector<std::string> names;
  for (const Option<S>& option : table) {
    if (internal::IsNamed(option, name)) return option;
    names.push_back(option.name);
  }
  internal::ThrowUnknownOption(name, names);
}

// Throws InvalidArgument for the first value that is out of its range or not among its choices.
template <class S>
void CheckOptions(std::span<const Option<S>> table, const S& options, OptionNames names) {
  S copy = options;
  for (const Option<S>& option : table) {
    option.set(copy, option.get(options), option.NameIn(names));
  }
}

}  // namespace litecache
