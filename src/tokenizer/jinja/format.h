// Python's two ways to format text.
#pragma once

#include "tokenizer/jinja/runtime.h"

namespace litecache::tokenizer::jinja {

// format % arguments.
Value PercentFormat(Runtime& rt, const MarkedString& format, const Value& arguments);

// format.format(*args, **kwargs).
Value StringFormat(Runtime& rt, const MarkedString& format, CallArgs& args);

// The layout of one value, which both share.
struct FormatSpec {
  std::string fill = " ";
  char align = 0;  // '<' '>' '^' '='; 0: by the type
  char sign = '-';
  bool alternate = false;
  char grouping = 0;
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};

// Formats a number with type d x X o b e E f F g G or %, without padding.
std::string FormatNumber(Runtime& rt, const FormatSpec& spec, const Value& value);
// Pads to the width of the spec; `default_align` applies if the spec has no alignment.
void AppendPadded(Runtime& rt, const FormatSpec& spec, char default_align, const MarkedString& text,
                  MarkedString* out);

}  // namespace litecache::tokenizer::jinja
