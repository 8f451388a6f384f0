#include <algorithm>
#include <unordered_map>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/call_args.h"
#include "tokenizer/jinja/format.h"
#include "tokenizer/jinja/text.h"
#include "tokenizer/jinja/unicode.h"
#include "tokenizer/jinja/value_ops.h"
#include "tokenizer/jinja/value_print.h"

namespace litecache::tokenizer::jinja {

namespace {

using Method = Value (*)(Runtime& rt, const MarkedString& self, CallArgs& args);

Value ListOf(Runtime& rt, std::vector<MarkedString> pieces) {
  std::vector<Value> items;
  items.reserve(pieces.size());
  for (MarkedString& piece : pieces) items.push_back(rt.MakeString(std::move(piece)));
  return rt.MakeList(std::move(items));
}

template <MarkedString (*Function)(const MarkedString&)>
Value Map(Runtime& rt, const MarkedString& self, CallArgs& args) {
  const BoundArgs bound(rt, "string method", args, {});
  return rt.MakeString(Function(self));
}

template <Side S>
Value StripMethod(Runtime& rt, const MarkedString& self, CallArgs& args) {
  const BoundArgs bound(rt, "strip", args, {"/chars"});
  std::optional<std::string_view> characters;
  if (bound.Has(0) && !bound[0].IsNone()) characters = bound.RequireString(0).text();
  return rt.MakeString(Strip(self, S, characters));
}

template <bool FromRight>
Value SplitMethod(Runtime& rt, const MarkedString& self, CallArgs& args) {
  const BoundArgs bound(rt, "split", args, {"sep", "maxsplit"});
  const int64_t limit = bound.Int(1, -1);
  if (!bound.Has(0) || bound[0].IsNone()) return ListOf(rt, SplitSpaces(self, limit, FromRight));
  const std::string& separator = bound.RequireString(0).text();
  if (separator.empty()) rt.Fail("empty separator");
  return ListOf(rt, Split(self, separator, limit, FromRight));
}

Value SplitLinesMethod(Runtime& rt, const MarkedString& self, CallArgs& args) {
  const BoundArgs bound(rt, "splitlines", args, {"keepends"});
  return ListOf(rt, SplitLines(self, bound.Bool(0, false)));
}

// The part of the text selected by the optional arguments (start, end), in code points; nullopt if
// start is after the end. *offset is the part's first byte.
std::optional<std::string_view> Range(const MarkedString& self, const BoundArgs& bound,
                                      size_t* offset) {
  const std::string_view text = self.text();
  *offset = 0;
  if (!bound.Has(1) && !bound.Has(2)) return text;
  const auto size = static_cast<int64_t>(CountCodePoints(text));
  const auto clamp = [&](int64_t i) { return i < 0 ? std::max<int64_t>(i + size, 0) : i; };
  const int64_t start = clamp(bound.Int(1).value_or(0));
  const int64_t end = std::min(clamp(bound.Int(2).value_or(size)), size);
  if (start > end) return std::nullopt;
  *offset = ByteOffset(text, static_cast<size_t>(start));
  return text.substr(*offset, ByteOffset(text, static_cast<size_t>(end)) - *offset);
}

template <bool AtEnd>
Value Affix(Runtime& rt, const MarkedString& self, CallArgs& args) {
  const BoundArgs bound(rt, AtEnd ? "endswith" : "startswith", args, {"/prefix", "/start", "/end"},
                        1);
  size_t offset = 0;
  const auto range = Range(self, bound, &offset);
  const auto matches = [&](const std::string& affix) {
    return range.has_value() && (AtEnd ? range->ends_with(affix) : range->starts_with(affix));
  };
  if (!bound[0].Is(Type::kTuple)) return Value::Bool(matches(bound.RequireString(0).text()));
  for (const Value& item : bound[0].items()) {
    if (!item.IsString()) rt.Fail("startswith and endswith take strings, not {}", TypeName(item));
    if (matches(item.text())) return Value::Bool(true);
  }
  return Value::Bool(false);
}

template <bool FromRight, bool Required>
Value Find(Runtime& rt, const MarkedString& self, CallArgs& args) {
  const BoundArgs bound(rt, "find", args, {"/sub", "/start", "/end"}, 1);
  size_t offset = 0;
  const std::string& part = bound.RequireString(0).text();
  if (const auto range = Range(self, bound, &offset)) {
    const size_t found = FromRight ? FindLastText(*range, part) : FindText(*range, part);
    if (found != std::string_view::npos) {
      return Value::Int(static_cast<int64_t>(
          CountCodePoints(std::string_view(self.text()).substr(0, offset + found))));
    }
  }
  if (Required) rt.Fail("substring not found");
  return Value::Int(-1);
}

Value CountMethod(Runtime& rt, const MarkedString& self, CallArgs& args) {
  const BoundArgs bound(rt, "count", args, {"/sub", "/start", "/end"}, 1);
  size_t offset = 0;
  const std::string& part = bound.RequireString(0).text();
  const auto range = Range(self, bound, &offset);
  return Value::Int(range ? static_cast<int64_t>(CountOccurrences(*range, part)) : 0);
}

Value ReplaceMethod(Runtime& rt, const MarkedString& self, CallArgs& args) {
  const BoundArgs bound(rt, "replace", args, {"/old", "/new", "/count"}, 2);
  return rt.MakeString(
      Replace(rt, self, bound.RequireString(0).text(), bound.RequireString(1), bound.Int(2, -1)));
}

Value JoinMethod(Runtime& rt, const MarkedString& self, CallArgs& args) {
  const BoundArgs bound(rt, "join", args, {"/iterable"}, 1);
  if (!IsIterable(bound[0])) rt.Fail("can only join an iterable");
  const std::vector<Value> items = ToVector(rt, bound[0]);
  MarkedString result;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].IsString()) {
      rt.Fail("sequence item {}: expected str instance, {} found", i, TypeName(items[i]));
    }
    if (i > 0) result.Append(self);
    AppendStr(rt, items[i], &result);
  }
  return rt.MakeString(std::move(result));
}

Value FormatMethod(Runtime& rt, const MarkedString& self, CallArgs& args) {
  return StringFormat(rt, self, args);
}

Value FormatMapMethod(Runtime& rt, const MarkedString& self, CallArgs& args) {
  const BoundArgs bound(rt, "format_map", args, {"/mapping"}, 1);
  if (!bound[0].Is(Type::kDict)) rt.Fail("format_map() takes a mapping");
  CallArgs keyword;
  for (const auto& [key, value] : bound[0].As<Dict>().entries()) {
    if (key.IsString()) keyword.keyword.emplace_back(key.text(), value);
  }
  return StringFormat(rt, self, keyword);
}

template <bool FromRight>
Value Partition(Runtime& rt, const MarkedString& self, CallArgs& args) {
  const BoundArgs bound(rt, "partition", args, {"/sep"}, 1);
  const std::string& separator = bound.RequireString(0).text();
  if (separator.empty()) rt.Fail("empty separator");
  const size_t found =
      FromRight ? FindLastText(self.text(), separator) : FindText(self.text(), separator);
  std::vector<Value> parts;
  if (found == std::string::npos) {
    const size_t whole = FromRight ? 2 : 0;
    for (size_t i = 0; i < 3; ++i) {
      parts.push_back(rt.MakeString(i == whole ? self : MarkedString()));
    }
  } else {
    const size_t after = found + separator.size();
    parts.push_back(rt.MakeString(self.Sub(0, found)));
    parts.push_back(rt.MakeString(self.Sub(found, after)));
    parts.push_back(rt.MakeString(self.Sub(after, self.size())));
  }
  return rt.MakeTuple(std::move(parts));
}

template <bool Suffix>
Value RemoveAffix(Runtime& rt, const MarkedString& self, CallArgs& args) {
  const BoundArgs bound(rt, Suffix ? "removesuffix" : "removeprefix", args, {"/affix"}, 1);
  const std::string& affix = bound.RequireString(0).text();
  const bool matches = Suffix ? self.text().ends_with(affix) : self.text().starts_with(affix);
  if (!matches) return rt.MakeString(self);
  return rt.MakeString(Suffix ? self.Sub(0, self.size() - affix.size())
                              : self.Sub(affix.size(), self.size()));
}

template <char Align>
Value Justify(Runtime& rt, const MarkedString& self, CallArgs& args) {
  const BoundArgs bound(rt, "justify", args, {"/width", "/fillchar"}, 1);
  FormatSpec spec;
  spec.width = bound.RequireInt(0);
  spec.align = Align;
  if (bound.Has(1)) spec.fill = bound.RequireString(1).text();
  if (CountCodePoints(spec.fill) != 1)
    rt.Fail("the fill character must be exactly one character long");
  MarkedString result;
  AppendPadded(rt, spec, Align, self, &result);
  return rt.MakeString(std::move(result));
}

// Whether the text is not empty and all its code points satisfy the predicate.
template <bool (*Predicate)(char32_t)>
Value All(Runtime& rt, const MarkedString& self, CallArgs& args) {
  const BoundArgs bound(rt, "string test", args, {});
  const std::string& text = self.text();
  for (size_t position = 0; position < text.size();) {
    if (!Predicate(NextCodePoint(text, &position))) return Value::Bool(false);
  }
  return Value::Bool(!text.empty());
}

bool IsAlphanumeric(char32_t c) { return IsAlpha(c) || IsNumeric(c); }
// str.isdigit also accepts superscripts and the like, which are Unicode's "other number".
bool IsDigitLike(char32_t c) {
  return IsDigit(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 ||
         (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) ||
         (c >= 0x2460 && c <= 0x2468);
}

template <bool Upper>
Value CaseTest(Runtime& rt, const MarkedString& self, CallArgs& args) {
  const BoundArgs bound(rt, Upper ? "isupper" : "islower", args, {});
  return Value::Bool(Upper ? HasOnlyUpper(self.text()) : HasOnlyLower(self.text()));
}

Value Zfill(Runtime& rt, const MarkedString& self, CallArgs& args) {
  const BoundArgs bound(rt, "zfill", args, {"/width"}, 1);
  FormatSpec spec;
  spec.width = bound.RequireInt(0);
  spec.fill = "0";
  const bool sign = !self.empty() && (self.text()[0] == '-' || self.text()[0] == '+');
  MarkedString result;
  if (sign) {
    result.Append(self, 0, 1);
    spec.width -= 1;
    AppendPadded(rt, spec, '>', self.Sub(1, self.size()), &result);
  } else {
    AppendPadded(rt, spec, '>', self, &result);
  }
  return rt.MakeString(std::move(result));
}

const std::unordered_map<std::string_view, Method>& Methods() {
  static const std::unordered_map<std::string_view, Method> methods = {
      {"upper", Map<Upper>},
      {"lower", Map<Lower>},
      {"capitalize", Map<Capitalize>},
      {"title", Map<TitleCase>},
      {"swapcase", Map<SwapCase>},
      {"strip", StripMethod<Side::kBoth>},
      {"lstrip", StripMethod<Side::kLeft>},
      {"rstrip", StripMethod<Side::kRight>},
      {"split", SplitMethod<false>},
      {"rsplit", SplitMethod<true>},
      {"splitlines", SplitLinesMethod},
      {"startswith", Affix<false>},
      {"endswith", Affix<true>},
      {"find", Find<false, false>},
      {"rfind", Find<true, false>},
      {"index", Find<false, true>},
      {"rindex", Find<true, true>},
      {"count", CountMethod},
      {"replace", ReplaceMethod},
      {"join", JoinMethod},
      {"format", FormatMethod},
      {"format_map", FormatMapMethod},
      {"partition", Partition<false>},
      {"rpartition", Partition<true>},
      {"removeprefix", RemoveAffix<false>},
      {"removesuffix", RemoveAffix<true>},
      {"ljust", Justify<'<'>},
      {"rjust", Justify<'>'>},
      {"zfill", Zfill},
      {"isspace", All<IsSpace>},
      {"isalpha", All<IsAlpha>},
      {"isalnum", All<IsAlphanumeric>},
      {"isdecimal", All<IsDigit>},
      {"isdigit", All<IsDigitLike>},
      {"isnumeric", All<IsNumeric>},
      {"isupper", CaseTest<true>},
      {"islower", CaseTest<false>},
  };
  return methods;
}

constexpr std::string_view kMissing[] = {"casefold",  "center",   "encode",      "expandtabs",
                                         "isascii",   "istitle",  "isprintable", "isidentifier",
                                         "maketrans", "translate"};

}  // namespace

std::optional<Value> StringMethod(Runtime& rt, const Value& object, const std::string& name) {
  const auto method = Methods().find(name);
  const bool missing =
      std::find(std::begin(kMissing), std::end(kMissing), name) != std::end(kMissing);
  if (method == Methods().end() && !missing) return std::nullopt;
  if (missing || object.string().markup()) {
    return MakeFunction(name, [name, missing](Runtime& rt, CallArgs&) -> Value {
      rt.FailUnsupported(fmt::format("the method str.{}(){} is not supported", name,
                                     missing ? "" : " of a string marked safe"));
    });
  }
  return MakeFunction(name, [object, function = method->second](Runtime& rt, CallArgs& args) {
    rt.Touch(object);
    for (const Value& argument : args.positional) rt.Touch(argument);
    return function(rt, object.string(), args);
  });
}

}  // namespace litecache::tokenizer::jinja
