#include "tokenizer/jinja/value_print.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>

#include "tokenizer/jinja/unicode.h"

namespace litecache::tokenizer::jinja {

namespace {

void AppendStringRepr(const MarkedString& string, MarkedString* out) {
  const std::string& text = string.text();
  const bool double_quoted =
      text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
  const char quote = double_quoted ? '"' : '\'';
  out->Append(quote);
  for (size_t position = 0; position < text.size();) {
    const size_t begin = position;
    const char32_t c = NextCodePoint(text, &position);
    const bool input = string.IsInput(begin);
    if (c == '\\' || c == static_cast<char32_t>(quote)) {
      out->Append('\\', input);
      out->Append(static_cast<char>(c), input);
    } else if (c == '\n') {
      out->Append("\\n", input);
    } else if (c == '\r') {
      out->Append("\\r", input);
    } else if (c == '\t') {
      out->Append("\\t", input);
    } else if (IsPrintable(c)) {
      out->Append(string, begin, position);
    } else if (c < 0x100) {
      out->Append(fmt::format("\\x{:02x}", static_cast<uint32_t>(c)), input);
    } else if (c < 0x10000) {
      out->Append(fmt::format("\\u{:04x}", static_cast<uint32_t>(c)), input);
    } else {
      out->Append(fmt::format("\\U{:08x}", static_cast<uint32_t>(c)), input);
    }
  }
  out->Append(quote);
}

void AppendItems(Runtime& rt, const std::vector<Value>& items, MarkedString* out) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out->Append(", ");
    AppendRepr(rt, items[i], out);
  }
}

void AppendDict(Runtime& rt, const Dict& dict, MarkedString* out) {
  out->Append('{');
  bool first = true;
  for (const auto& [key, value] : dict.entries()) {
    if (!first) out->Append(", ");
    first = false;
    AppendRepr(rt, key, out);
    out->Append(": ");
    AppendRepr(rt, value, out);
  }
  out->Append('}');
}

void AppendView(Runtime& rt, const Value& value, MarkedString* out) {
  const auto& view = value.As<DictViewObject>();
  out->Append(TypeName(value) + "([");
  bool first = true;
  for (const auto& [key, item] : view.dict->entries()) {
    if (!first) out->Append(", ");
    first = false;
    if (view.kind == ViewKind::kItems) {
      out->Append('(');
      AppendRepr(rt, key, out);
      out->Append(", ");
      AppendRepr(rt, item, out);
      out->Append(')');
    } else {
      AppendRepr(rt, view.kind == ViewKind::kKeys ? key : item, out);
    }
  }
  out->Append("])");
}

}  // namespace

std::string FormatFloat(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  const size_t e = text.find('e');
  const int exponent = std::stoi(text.substr(e + 1));
  if (exponent < -4 || exponent >= 16) return text;  // exponent notation: 1.5e-05, 1e+16
  end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed);
  std::string fixed(buffer, end.ptr);
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

void AppendRepr(Runtime& rt, const Value& value, MarkedString* out) {
  rt.Step();
  // A repr of nested lists repeats shared parts, so it can be far larger than the values.
  if (out->size() > static_cast<size_t>(rt.limits().string_bytes)) rt.ChargeBytes(out->size());
  Runtime::DepthGuard guard(&rt);
  switch (value.type()) {
    case Type::kUndefined:
      out->Append("Undefined");
      return;
    case Type::kNone:
      out->Append("None");
      return;
    case Type::kBool:
      out->Append(value.bool_value() ? "True" : "False");
      return;
    case Type::kInt:
      out->Append(fmt::format("{}", value.int_value()));
      return;
    case Type::kFloat:
      out->Append(FormatFloat(value.number()));
      return;
    case Type::kString:
      if (value.string().markup()) out->Append("Markup(");
      AppendStringRepr(value.string(), out);
      if (value.string().markup()) out->Append(')');
      return;
    case Type::kList:
      out->Append('[');
      AppendItems(rt, value.items(), out);
      out->Append(']');
      return;
    case Type::kTuple:
      out->Append('(');
      AppendItems(rt, value.items(), out);
      out->Append(value.items().size() == 1 ? ",)" : ")");
      return;
    case Type::kDict:
      AppendDict(rt, value.As<Dict>(), out);
      return;
    case Type::kRange: {
      const auto& range = value.As<RangeObject>();
      out->Append(range.step == 1
                      ? fmt::format("range({}, {})", range.start, range.stop)
                      : fmt::format("range({}, {}, {})", range.start, range.stop, range.step));
      return;
    }
    case Type::kDictView:
      AppendView(rt, value, out);
      return;
    case Type::kIterator:
      // Python prints an address here, which is of no use to a template.
      out->Append(fmt::format("<{} object>", TypeName(value)));
      return;
    case Type::kNamespace:
      out->Append("<Namespace ");
      AppendDict(rt, value.As<NamespaceObject>().attributes, out);
      out->Append('>');
      return;
    case Type::kCallable:
      out->Append(value.As<Callable>().Repr());
      return;
  }
}

void AppendStr(Runtime& rt, const Value& value, MarkedString* out) {
  if (value.IsString()) {
    out->Append(value.string());
  } else if (!value.IsUndefined()) {
    AppendRepr(rt, value, out);
  }
  if (out->size() > static_cast<size_t>(rt.limits().string_bytes)) rt.ChargeBytes(out->size());
}

MarkedString Str(Runtime& rt, const Value& value) {
  if (value.IsString()) return value.string();
  MarkedString out;
  AppendStr(rt, value, &out);
  rt.ChargeBytes(out.size());
  return out;
}

}  // namespace litecache::tokenizer::jinja
