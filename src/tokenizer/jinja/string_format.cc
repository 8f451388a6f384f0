#include <cmath>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/format.h"
#include "tokenizer/jinja/unicode.h"
#include "tokenizer/jinja/value_ops.h"
#include "tokenizer/jinja/value_print.h"

namespace litecache::tokenizer::jinja {

namespace {

bool IsAlign(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

class StringFormatter {
 public:
  StringFormatter(Runtime& rt, const MarkedString& format, const CallArgs& args)
      : rt_(rt), format_(format), text_(format.text()), args_(args) {}

  MarkedString Run() {
    size_t position = 0;
    while (position < text_.size()) {
      const size_t brace = std::min(text_.find_first_of("{}", position), text_.size());
      out_.Append(format_, position, brace);
      if (brace == text_.size()) break;
      if (brace + 1 < text_.size() && text_[brace + 1] == text_[brace]) {
        out_.Append(format_, brace, brace + 1);
        position = brace + 2;
      } else if (text_[brace] == '}') {
        rt_.Fail("single '}}' encountered in format string");
      } else {
        position = ReadField(brace + 1);
      }
    }
    return std::move(out_);
  }

 private:
  size_t ReadField(size_t begin) {
    const size_t end = text_.find('}', begin);
    if (end == std::string::npos) rt_.Fail("expected '}}' before end of string");
    const std::string field = text_.substr(begin, end - begin);
    if (field.find('{') != std::string::npos) {
      rt_.FailUnsupported("fields inside of a format specification are not supported");
    }
    size_t name_end = 0;  // '!' and ':' inside [...] belong to the key
    for (bool bracket = false; name_end < field.size(); ++name_end) {
      const char c = field[name_end];
      if (c == '[') bracket = true;
      if (c == ']') bracket = false;
      if (!bracket && (c == '!' || c == ':')) break;
    }
    Value value = Lookup(field.substr(0, name_end));
    size_t spec_begin = name_end;
    if (spec_begin < field.size() && field[spec_begin] == '!') {
      if (spec_begin + 1 >= field.size()) rt_.Fail("missing conversion character in a format");
      value = Conversion(field[spec_begin + 1], value);
      spec_begin += 2;
      if (spec_begin < field.size() && field[spec_begin] != ':') {
        rt_.Fail("expected ':' after conversion specifier");
      }
    }
    const std::string spec = spec_begin < field.size() ? field.substr(spec_begin + 1) : "";
    AppendFormatted(value, spec);
    return end + 1;
  }

  Value Conversion(char kind, const Value& value) {
    if (kind == 's') return rt_.MakeString(Str(rt_, value));
    if (kind == 'r') {
      MarkedString repr;
      AppendRepr(rt_, value, &repr);
      return rt_.MakeString(std::move(repr));
    }
    if (kind == 'a') rt_.FailUnsupported("the conversion !a is not supported");
    rt_.Fail("unknown conversion specifier '{}'", kind);
  }

  Value First(const std::string& name) {
    const bool number = name.find_first_not_of("0123456789") == std::string::npos;
    if (!number) {
      for (const auto& [key, value] : args_.keyword) {
        if (key == name) return value;
      }
      rt_.Fail("format has no value for the key '{}'", name);
    }
    size_t index = 0;
    if (name.empty()) {
      if (numbering_ == 'm') rt_.Fail("cannot switch from manual to automatic field numbering");
      numbering_ = 'a';
      index = next_++;
    } else {
      if (numbering_ == 'a') rt_.Fail("cannot switch from automatic to manual field numbering");
      numbering_ = 'm';
      index = name.size() > 9 ? SIZE_MAX : static_cast<size_t>(std::stoul(name));
    }
    if (index >= args_.positional.size()) {
      rt_.Fail("replacement index {} out of range for positional args tuple",
               name.empty() ? next_ - 1 : index);
    }
    return args_.positional[index];
  }

  Value Lookup(const std::string& name) {
    size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = First(name.substr(0, end));
    while (end < name.size()) {
      const size_t begin = end + 1;
      if (name[end] == '.') {
        end = std::min(name.find_first_of(".[", begin), name.size());
        if (end == begin) rt_.Fail("empty attribute in format string");
        value = GetAttribute(rt_, value, name.substr(begin, end - begin));
      } else {
        const size_t close = name.find(']', begin);
        if (close == std::string::npos) rt_.Fail("missing ']' in format string");
        if (close == begin) rt_.Fail("empty attribute in format string");
        const std::string key = name.substr(begin, close - begin);
        const bool number =
            key.size() < 18 && key.find_first_not_of("0123456789") == std::string::npos;
        value = GetItem(rt_, value, number ? Value::Int(std::stoll(key)) : Value::String(key));
        end = close + 1;
        if (end < name.size() && name[end] != '.' && name[end] != '[') {
          rt_.Fail("only '.' or '[' may follow ']' in format field specifier");
        }
      }
    }
    return value;
  }

  FormatSpec ParseSpec(const std::string& text) {
    FormatSpec spec;
    size_t at = 0;
    const size_t first_end = ByteOffset(text, 1);
    if (first_end < text.size() && IsAlign(text[first_end])) {
      spec.fill = text.substr(0, first_end);
      spec.align = text[first_end];
      at = first_end + 1;
    } else if (!text.empty() && IsAlign(text[0])) {
      spec.align = text[0];
      at = 1;
    }
    const auto peek = [&] { return at < text.size() ? text[at] : '\0'; };
    if (peek() == '+' || peek() == '-' || peek() == ' ') spec.sign = text[at++];
    if (peek() == '#') {
      spec.alternate = true;
      ++at;
    }
    if (peek() == '0') {
      if (spec.align == 0) {
        spec.align = '=';
        spec.fill = "0";
      }
      ++at;
    }
    const auto read_int = [&] {
      int64_t value = 0;
      while (peek() >= '0' && peek() <= '9') {
        value = value * 10 + (text[at++] - '0');
        if (value > rt_.limits().string_bytes) rt_.Fail("width or precision too big");
      }
      return value;
    };
    spec.width = read_int();
    if (peek() == ',' || peek() == '_') spec.grouping = text[at++];
    if (peek() == '.') {
      ++at;
      if (peek() < '0' || peek() > '9') rt_.Fail("format specifier missing precision");
      spec.precision = read_int();
    }
    if (at < text.size()) spec.type = text[at++];
    if (at < text.size()) rt_.Fail("invalid format specifier '{}'", text);
    return spec;
  }

  void AppendFormatted(const Value& value, const std::string& spec_text) {
    if (spec_text.empty()) {
      AppendStr(rt_, value, &out_);
      return;
    }
    if (value.IsString()) {
      FormatSpec spec = ParseSpec(spec_text);
      if (spec.type != 0 && spec.type != 's') {
        rt_.Fail("unknown format code '{}' for object of type 'str'", spec.type);
      }
      if (spec.align == '=' && spec.fill == "0") spec.align = '<';
      if (spec.align == '=' || spec.sign != '-' || spec.alternate || spec.grouping != 0) {
        rt_.Fail("format specifier '{}' is not allowed for a string", spec_text);
      }
      MarkedString text = value.string();
      if (spec.precision >= 0) {
        text = text.Sub(0, ByteOffset(text.text(), static_cast<size_t>(spec.precision)));
      }
      AppendPadded(rt_, spec, '<', text, &out_);
    } else if (value.IsNumber()) {
      AppendNumber(value, ParseSpec(spec_text));
    } else {
      rt_.Fail("unsupported format string passed to {}.__format__", TypeName(value));
    }
  }

  void AppendNumber(const Value& value, FormatSpec spec) {
    const bool integer = value.IsInteger();
    if (spec.type == 0) {
      if (!integer) rt_.FailUnsupported("a format specification of a float without a type");
      spec.type = 'd';
    }
    const std::string_view allowed = integer ? "dxXobeEfFgG%" : "eEfFgG%";
    if (allowed.find(spec.type) == std::string_view::npos) {
      if (spec.type == 'n' || spec.type == 'c') {
        rt_.FailUnsupported(fmt::format("the format code '{}' is not supported", spec.type));
      }
      rt_.Fail("unknown format code '{}' for object of type '{}'", spec.type, TypeName(value));
    }
    if (std::string_view("dxXob").find(spec.type) != std::string_view::npos) {
      if (spec.precision >= 0) rt_.Fail("precision not allowed in integer format specifier");
    }
    if (spec.grouping != 0 && spec.align == '=' && spec.fill == "0") {
      rt_.FailUnsupported("zero padding together with grouping is not supported");
    }
    AppendPadded(rt_, spec, '>', MarkedString(FormatNumber(rt_, spec, value)), &out_);
  }

  Runtime& rt_;
  const MarkedString& format_;
  const std::string& text_;
  const CallArgs& args_;
  char numbering_ = 0;  // 'a'utomatic or 'm'anual; 0: not decided so far
  size_t next_ = 0;
  MarkedString out_;
};

}  // namespace

Value StringFormat(Runtime& rt, const MarkedString& format, CallArgs& args) {
  return rt.MakeString(StringFormatter(rt, format, args).Run());
}

}  // namespace litecache::tokenizer::jinja
