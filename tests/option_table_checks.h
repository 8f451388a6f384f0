// Requirements on every option table: a row for each member of its struct, and only one.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "litecache/options.h"

namespace litecache::testing {

namespace internal {

struct Anything {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor): implicit conversion is its purpose
};

template <class S, size_t... I>
consteval bool TakesInitializers(std::index_sequence<I...>) {
  return requires { S{(static_cast<void>(I), Anything())...}; };
}

}  // namespace internal

// Number of members of an aggregate: the maximum number of initializers.
template <class S, size_t N = 1>
consteval size_t CountFields() {
  if constexpr (internal::TakesInitializers<S>(std::make_index_sequence<N>())) {
    return CountFields<S, N + 1>();
  } else {
    return N - 1;
  }
}

namespace internal {
struct Two {
  int a;
  std::string b;
};
struct Three {
  Two two;
  double x = 1;
  bool y = false;
};
static_assert(CountFields<Two>() == 2);
static_assert(CountFields<Three>() == 3);
}  // namespace internal

// A value of the row other than the default.
template <class S>
std::string AnotherValue(const Option<S>& option) {
  const std::string before = option.get(S());
  for (const char* text :
       {"on",   "off",       "1",     "0",     "2",    "128", "0.5", "f32",    "fp8",    "copy",
        "full", "litecache", "exact", "fixed", "mean", "sum", "16",  "lookup", "sparse", "x"}) {
    S options;
    try {
      option.set(options, text, option.name);
    } catch (const InvalidArgument&) {
      continue;
    }
    if (option.get(options) != before) return text;
  }
  ADD_FAILURE() << option.name << ": no text changes it";
  return before;
}

// Rows have distinct names, flags and help texts, and each reads and writes one member that no
// other row uses.
template <class S>
void ExpectSoundTable(std::span<const Option<S>> table) {
  std::set<std::string> names;
  std::set<std::string> flags;
  for (const Option<S>& option : table) {
    SCOPED_TRACE(option.name);
    EXPECT_TRUE(names.insert(option.name).second);
    EXPECT_TRUE(flags.insert(option.LongFlag()).second) << option.flag;
    EXPECT_GT(option.help.size(), 10u);
    EXPECT_EQ(option.type.empty(), option.is_flag);
    S changed;
    option.set(changed, AnotherValue(option), option.name);
    for (const Option<S>& other : table) {
      EXPECT_EQ(other.get(changed) != other.get(S()), other.name == option.name) << other.name;
    }
    S copy;
    option.set(copy, option.get(changed), option.name);
    EXPECT_EQ(option.get(copy), option.get(changed));
  }
}

}  // namespace litecache::testing
