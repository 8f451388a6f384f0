// str() and repr() of values, as Python prints them.
#pragma once

#include <string>

#include "tokenizer/jinja/runtime.h"

namespace litecache::tokenizer::jinja {

// repr(float): the shortest digits that read back as the same number.
std::string FormatFloat(double value);

// str(value): what {{ value }} prints. A string gives itself, marks kept.
MarkedString Str(Runtime& rt, const Value& value);
void AppendStr(Runtime& rt, const Value& value, MarkedString* out);
void AppendRepr(Runtime& rt, const Value& value, MarkedString* out);

}  // namespace litecache::tokenizer::jinja
