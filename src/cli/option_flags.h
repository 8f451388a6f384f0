// Command-line flags made from the rows of option tables (litecache/options.h).
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "litecache/options.h"

namespace litecache::cli {

// Declares the flag of a row. `value` is its default as text; `set` receives the given value.
void DeclareFlag(CLI::App& app, const OptionInfo& option, const std::string& value,
                 const std::function<void(const std::string& text)>& set);

// Values are written to *options while the command line is parsed; errors throw an InvalidArgument
// that names the flag. The row and *options must outlive `app`; the values in *options are the
// defaults.
template <class S>
void DeclareFlag(CLI::App& app, const Option<S>& option, S* options) {
  DeclareFlag(app, option, option.get(*options), [&option, options](const std::string& text) {
    option.set(*options, text, option.LongFlag());
  });
}

}  // namespace litecache::cli
