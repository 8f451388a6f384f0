// Makes rows of option tables (litecache/options.h) for the members of a struct, by the kind of
// their values.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "litecache/options.h"

namespace litecache::option_rows {

// How values of type T are written as text.
template <class T>
struct Kind {
  std::string type;    // OptionInfo.type
  std::string values;  // OptionInfo.values
  // Throws InvalidArgument, which names `who` and the text; also for values out of range.
  std::function<T(const std::string& text, std::string_view who)> read;
  std::function<std::string(const T& value)> write;
};

Kind<int64_t> Whole(double low, double high);
Kind<int64_t> Tokens(double low, double high);  // "16k", "12000"; also -1 if in range
Kind<double> Real(double low, double high);
Kind<double> Share();    // "50%", "0.5"
Kind<uint64_t> Bytes();  // "48GiB"
Kind<bool> Flag();       // a flag without a value; also --no-NAME if it is on by default
Kind<bool> Switch();     // a flag with the value on or off
Kind<std::string> Text(std::string type);
Kind<std::string> Choice(std::vector<std::string> choices, std::string type = "NAME");

std::string FlagOf(const std::string& name);  // "--sink-tokens"

// The row of a member. `more`: further properties of the option.
template <class S, class T, class V>
Option<S> Row(std::string name, T S::*member, const Kind<V>& kind, std::string help,
              OptionInfo more = {}) {
  more.name = std::move(name);
  more.help = std::move(help);
  if (more.flag.empty()) more.flag = FlagOf(more.name);
  if (more.type.empty()) more.type = kind.type;
  if (more.values.empty()) more.values = kind.values;
  more.is_flag = more.type.empty();
  return {std::move(more),
          [member, write = kind.write](const S& s) { return write(static_cast<V>(s.*member)); },
          [member, read = kind.read](S& s, const std::string& text, std::string_view who) {
            s.*member = static_cast<T>(read(text, who));
          }};
}

// The rows of a struct P that is a part of S; `part` finds it: [](auto& s) -> auto& { return
// s.p; }. A prefix, unless empty, is put before the rows' names and flags: "kvpr.split",
// "--kvpr-split".
template <class S, class P, class Find>
std::vector<Option<S>> Part(std::span<const Option<P>> rows, const std::string& prefix, Find part) {
  std::vector<Option<S>> result;
  for (const Option<P>& row : rows) {
    OptionInfo info = row;
    if (!prefix.empty()) {
      info.name = prefix + "." + row.name;
      info.flag = "--" + prefix + "-" + row.LongFlag().substr(2);
    }
    result.push_back({std::move(info), [part, get = row.get](const S& s) { return get(part(s)); },
                      [part, set = row.set](S& s, const std::string& text, std::string_view who) {
                        set(part(s), text, who);
                      }});
  }
  return result;
}

// Adds rows under a heading of the help. policies: for rows that do not name any.
template <class S>
void Add(std::vector<Option<S>>* table, const std::string& group, std::vector<Option<S>> rows,
         const std::vector<std::string>& policies = {}) {
  for (Option<S>& row : rows) {
    row.group = group;
    if (row.policies.empty()) row.policies = policies;
    table->push_back(std::move(row));
  }
}

}  // namespace litecache::option_rows
