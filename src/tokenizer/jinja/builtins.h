// Names that templates can use: filters, tests, methods of values and global functions.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/runtime.h"

namespace litecache::tokenizer::jinja {

// `args` excludes the value on the left of '|' or 'is'.
using FilterFunction = Value (*)(Runtime& rt, const Value& input, CallArgs& args);
using TestFunction = bool (*)(Runtime& rt, const Value& input, CallArgs& args);

struct NamedFilter {
  std::string_view name;
  FilterFunction function;
};
struct NamedTest {
  std::string_view name;
  TestFunction function;
};

// nullptr if there is no such filter.
FilterFunction FindFilter(std::string_view name);
TestFunction FindTest(std::string_view name);

// Throws Unsupported for names that Jinja has and this interpreter lacks, else InvalidArgument.
[[noreturn]] void FailUnknownFilter(std::string_view name, int line);
[[noreturn]] void FailUnknownTest(std::string_view name, int line);

// Applies a filter by name at run time, as map('upper') does.
Value ApplyFilter(Runtime& rt, std::string_view name, const Value& input, CallArgs& args);
bool ApplyTest(Runtime& rt, std::string_view name, const Value& input, CallArgs& args);

// The groups of filters, each in its own file.
std::vector<NamedFilter> TextFilters();
std::vector<NamedFilter> NumberFilters();
std::vector<NamedFilter> SequenceFilters();
std::vector<NamedFilter> SelectionFilters();

// object.name and object['name'] as the sandbox resolves them: the first tries the methods of the
// type before the entries of a dict, the second after. Undefined if neither exists.
Value GetAttribute(Runtime& rt, const Value& object, const std::string& name);
Value GetItem(Runtime& rt, const Value& object, const Value& key);

// A method bound to its object, or nullopt if the type has no such method.
std::optional<Value> StringMethod(Runtime& rt, const Value& object, const std::string& name);
std::optional<Value> ContainerMethod(Runtime& rt, const Value& object, const std::string& name);

// Follows the attribute path of map, sort and others: "a.b.0", or an index. `missing` replaces
// undefined values on the way.
Value GetPath(Runtime& rt, Value item, const Value& path,
              const std::optional<Value>& missing = std::nullopt);

// range, dict, namespace, raise_exception, ...
std::vector<std::pair<std::string, Value>> Globals();

// Wraps a C++ function as a global function or bound method.
using NativeFunction = std::function<Value(Runtime&, CallArgs&)>;
Value MakeFunction(std::string name, NativeFunction function);

}  // namespace litecache::tokenizer::jinja
