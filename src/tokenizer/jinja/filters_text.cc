#include <algorithm>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/call_args.h"
#include "tokenizer/jinja/format.h"
#include "tokenizer/jinja/json_values.h"
#include "tokenizer/jinja/text.h"
#include "tokenizer/jinja/unicode.h"
#include "tokenizer/jinja/value_ops.h"
#include "tokenizer/jinja/value_print.h"

namespace litecache::tokenizer::jinja {

namespace {

template <MarkedString (*Function)(const MarkedString&)>
Value Map(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "filter", args, {});
  return rt.MakeString(Function(Str(rt, input)));
}

// Jinja's title filter: capitalizes the first character of every word; words end at spaces and - (
// { [ <.
MarkedString JinjaTitle(const MarkedString& string) {
  const std::string& text = string.text();
  const auto separates = [](char32_t c) {
    return IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  MarkedString result;
  std::string mapped;
  size_t word = 0;  // start of the current word or run of separators
  bool in_separators = false;
  for (size_t position = 0; position < text.size();) {
    const size_t at = position;
    const char32_t c = NextCodePoint(text, &position);
    if (at == 0 || separates(c) != in_separators) {
      word = at;
      in_separators = separates(c);
    }
    mapped.clear();
    if (at == word) {
      AppendUpper(c, &mapped);
      size_t end = position;  // end of the word, which the final-sigma rule needs
      while (end < text.size()) {
        size_t next = end;
        if (separates(NextCodePoint(text, &next)) != in_separators) break;
        end = next;
      }
      result.Append(mapped, string.IsInput(at));
      const MarkedString rest = Lower(string.Sub(position, end));
      result.Append(rest);
      position = end;
    }
  }
  return result;
}

Value Trim(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "trim", args, {"chars"});
  std::optional<std::string_view> characters;
  if (bound.Has(0) && !bound[0].IsNone()) characters = bound.RequireString(0).text();
  return rt.MakeString(Strip(Str(rt, input), Side::kBoth, characters));
}

Value ReplaceFilter(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "replace", args, {"old", "new", "count"}, 2);
  return rt.MakeString(Replace(rt, Str(rt, input), Str(rt, bound[0]).text(), Str(rt, bound[1]),
                               bound.Int(2).value_or(-1)));
}

Value String(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "string", args, {});
  return rt.MakeString(Str(rt, input));
}

Value Safe(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "safe", args, {});
  MarkedString text = Str(rt, input);
  text.set_markup(true);
  return rt.MakeString(std::move(text));
}

Value ForceEscape(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "escape", args, {});
  MarkedString text = EscapeHtml(Str(rt, input));
  text.set_markup(true);
  return rt.MakeString(std::move(text));
}

Value Escape(Runtime& rt, const Value& input, CallArgs& args) {
  if (input.IsString() && input.string().markup()) return input;
  return ForceEscape(rt, input, args);
}

Value Format(Runtime& rt, const Value& input, CallArgs& args) {
  if (!args.positional.empty() && !args.keyword.empty()) {
    rt.Fail("format takes positional or keyword arguments, not both");
  }
  if (args.keyword.empty()) {
    return PercentFormat(rt, Str(rt, input), rt.MakeTuple(std::move(args.positional)));
  }
  auto dict = std::make_shared<Dict>();
  for (auto& [name, value] : args.keyword) dict->Set(rt.MakeString(name), value);
  return PercentFormat(rt, Str(rt, input), rt.MakeDict(std::move(dict)));
}

Value Indent(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "indent", args, {"width", "first", "blank"});
  RequireDefined(rt, input);
  if (!input.IsString()) rt.Fail("indent needs a string, not '{}'", TypeName(input));
  if (input.string().markup()) rt.FailUnsupported("indent of a string marked safe");
  MarkedString indention;
  if (bound.Has(0) && bound[0].IsString()) {
    indention = bound[0].string();
  } else {
    const int64_t width = std::max<int64_t>(bound.Int(0, 4), 0);
    rt.ChargeBytes(static_cast<size_t>(width));
    indention = MarkedString(std::string(static_cast<size_t>(width), ' '));
  }
  MarkedString text = input.string();
  text.Append('\n');
  const std::vector<MarkedString> lines = SplitLines(text, false);
  size_t total = 0;
  if (__builtin_mul_overflow(lines.size(), indention.size() + 1, &total)) total = SIZE_MAX / 2;
  rt.ChargeBytes(total);
  const bool blank = bound.Bool(2, false);
  MarkedString result;
  if (bound.Bool(1, false)) result.Append(indention);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      result.Append('\n');
      if (blank || !lines[i].empty()) result.Append(indention);
    }
    result.Append(lines[i]);
  }
  return rt.MakeString(std::move(result));
}

Value Center(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "center", args, {"width"});
  const MarkedString text = Str(rt, input);
  const auto length = static_cast<int64_t>(CountCodePoints(text.text()));
  const int64_t padding = std::max<int64_t>(bound.Int(0, 80) - length, 0);
  rt.ChargeBytes(static_cast<size_t>(padding));
  // As in CPython: the odd space goes to the left if the width is odd.
  const int64_t left = padding / 2 + (padding & (padding + length) & 1);
  MarkedString result(std::string(static_cast<size_t>(left), ' '));
  result.Append(text);
  result.Append(std::string(static_cast<size_t>(padding - left), ' '));
  result.set_markup(text.markup());
  return rt.MakeString(std::move(result));
}

Value Truncate(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "truncate", args, {"length", "killwords", "end", "leeway"});
  const int64_t length = bound.Int(0, 255);
  const MarkedString end = bound.Has(2) ? bound.RequireString(2) : MarkedString("...");
  const int64_t leeway = bound.Int(3).value_or(5);
  const auto end_length = static_cast<int64_t>(CountCodePoints(end.text()));
  if (length < end_length) rt.Fail("expected length >= {}, got {}", end_length, length);
  if (leeway < 0) rt.Fail("expected leeway >= 0, got {}", leeway);
  // A value that is short enough passes unchanged, even a list.
  const auto size = Length(input);
  if (!size) rt.Fail("object of type '{}' has no len()", TypeName(input));
  if (*size <= length || *size - length <= leeway) return input;
  if (!input.IsString()) rt.Fail("truncate needs a string, not '{}'", TypeName(input));
  const MarkedString& text = input.string();
  MarkedString result =
      text.Sub(0, ByteOffset(text.text(), static_cast<size_t>(length - end_length)));
  if (!bound.Bool(1, false)) {
    const size_t space = result.text().rfind(' ');
    if (space != std::string::npos) result = result.Sub(0, space);
  }
  // Text added to a string marked safe is escaped, and the result is marked safe.
  result.Append(text.markup() && !end.markup() ? EscapeHtml(end) : end);
  result.set_markup(text.markup());
  return rt.MakeString(std::move(result));
}

Value WordCount(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "wordcount", args, {});
  const MarkedString text = Str(rt, input);
  int64_t count = 0;
  bool in_word = false;
  for (size_t position = 0; position < text.size();) {
    const bool word = IsWordCharacter(NextCodePoint(text.text(), &position));
    count += word && !in_word;
    in_word = word;
  }
  return Value::Int(count);
}

Value ToJsonFilter(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.Bool(0, false);
  style.sort_keys = bound.Bool(3, false);
  if (bound.Has(1) && !bound[1].IsNone()) {
    style.item_separator = ",";
    if (bound[1].IsString()) {
      style.indent = bound[1].text();
    } else {
      const int64_t width = std::max<int64_t>(bound.RequireInt(1), 0);
      rt.ChargeBytes(static_cast<size_t>(width));
      style.indent = std::string(static_cast<size_t>(width), ' ');
    }
  }
  if (bound.Has(2) && !bound[2].IsNone()) {
    const std::vector<Value> separators = ToVector(rt, bound[2]);
    if (separators.size() != 2 || !separators[0].IsString() || !separators[1].IsString()) {
      rt.Fail("tojson separators must be two strings");
    }
    style.item_separator = separators[0].text();
    style.key_separator = separators[1].text();
  }
  return rt.MakeString(ToJson(rt, input, style));
}

}  // namespace

std::vector<NamedFilter> TextFilters() {
  return {
      {"upper", Map<Upper>},
      {"lower", Map<Lower>},
      {"capitalize", Map<Capitalize>},
      {"title", Map<JinjaTitle>},
      {"trim", Trim},
      {"replace", ReplaceFilter},
      {"string", String},
      {"safe", Safe},
      {"escape", Escape},
      {"e", Escape},
      {"forceescape", ForceEscape},
      {"format", Format},
      {"indent", Indent},
      {"center", Center},
      {"truncate", Truncate},
      {"wordcount", WordCount},
      {"tojson", ToJsonFilter},
  };
}

}  // namespace litecache::tokenizer::jinja
