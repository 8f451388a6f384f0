// Flags of the command line, made from the rows of option tables (litecache/options.h).
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "litecache/options.h"

namespace litecache::cli {

// The flag of a row. `value` is its default as text; `set` takes what is given.
void DeclareFlag(CLI::App& app, const OptionInfo& option, const std::string& value,
                 const std::function<void(const std::string& text)>& set);

// What is given is written to *options while the command line is parsed, which throws
// InvalidArgument naming the flag. The row and *options outlive `app`; what *options holds is the
// default.
template <class S>
void DeclareFlag(CLI::App& app, const Option<S>& option, S* options) {
  DeclareFlag(app, option, option.get(*options), [&option, options](const std::string& text) {
    option.set(*options, text, option.LongFlag());
  });
}

}  // namespace litecache::cli
