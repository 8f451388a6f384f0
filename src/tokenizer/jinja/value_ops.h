// Operators, subscripts and iteration, with Python's rules.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/jinja/runtime.h"

namespace litecache::tokenizer::jinja {

enum class Op {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kIn,
  kNotIn
};

// + - * / // % ** on numbers, strings and lists.
Value Arithmetic(Runtime& rt, Op op, const Value& a, const Value& b);
Value Negate(Runtime& rt, const Value& a);
Value Positive(Runtime& rt, const Value& a);

// Whether it is a dictionary's keys() or items(), which compare and subtract as sets.
bool IsSetLike(const Value& value);

// == != < <= > >= in not-in.
bool Compare(Runtime& rt, Op op, const Value& a, const Value& b);
bool Less(Runtime& rt, const Value& a, const Value& b);
bool Contains(Runtime& rt, const Value& container, const Value& item);

// len(); nullopt for values without a length.
std::optional<int64_t> Length(const Value& value);

// Whether a for loop accepts the value.
bool IsIterable(const Value& value);
// iter(); fails for values that cannot be iterated.
std::shared_ptr<Iterator> Iterate(Runtime& rt, const Value& value);
std::vector<Value> ToVector(Runtime& rt, const Value& value);
// An iterator over `next`; `name` is Python's name of its type.
std::shared_ptr<Iterator> MakeGenerator(std::function<bool(Runtime&, Value*)> next,
                                        const char* name = "generator");
std::shared_ptr<Iterator> IterateVector(std::vector<Value> items, const char* name);

// obj[key]: nullopt where Python raises IndexError, KeyError or TypeError.
std::optional<Value> Subscript(Runtime& rt, const Value& object, const Value& key);
Value Slice(Runtime& rt, const Value& object, const Value& start, const Value& stop,
            const Value& step);

// Converts an int argument; the error names `what`.
int64_t ToIndex(Runtime& rt, const Value& value, const char* what);

// Fails with the value's own message if it is undefined.
void RequireDefined(Runtime& rt, const Value& value);

// HTML-escapes & < > ' ".
MarkedString EscapeHtml(const MarkedString& text);

}  // namespace litecache::tokenizer::jinja
