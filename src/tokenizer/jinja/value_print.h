// Python's str() and repr() of values.
#pragma once

#include <string>

#include "tokenizer/jinja/runtime.h"

namespace litecache::tokenizer::jinja {

// repr(float): the shortest digits that read back as the same number.
std::string FormatFloat(double value);

// str(value): the output of {{ value }}. A string is returned unchanged, with its marks.
MarkedString Str(Runtime& rt, const Value& value);
void AppendStr(Runtime& rt, const Value& value, MarkedString* out);
void AppendRepr(Runtime& rt, const Value& value, MarkedString* out);

}  // namespace litecache::tokenizer::jinja
