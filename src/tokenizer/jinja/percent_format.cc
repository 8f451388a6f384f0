#include <cmath>

#include "tokenizer/jinja/format.h"
#include "tokenizer/jinja/unicode.h"
#include "tokenizer/jinja/value_ops.h"
#include "tokenizer/jinja/value_print.h"

namespace litecache::tokenizer::jinja {

namespace {

class PercentFormatter {
 public:
  PercentFormatter(Runtime& rt, const MarkedString& format, const Value& arguments)
      : rt_(rt), format_(format), text_(format.text()), arguments_(arguments) {}

  MarkedString Run() {
    while (position_ < text_.size()) {
      const size_t percent = std::min(text_.find('%', position_), text_.size());
      out_.Append(format_, position_, percent);
      position_ = percent;
      if (position_ < text_.size()) Convert();
    }
    const bool mapping = arguments_.Is(Type::kDict) || arguments_.Is(Type::kList) ||
                         arguments_.IsUndefined() || arguments_.Is(Type::kRange);
    const size_t given = arguments_.Is(Type::kTuple) ? arguments_.items().size() : 1;
    if (used_ < given && !mapping) rt_.Fail("not all arguments converted during string formatting");
    return std::move(out_);
  }

 private:
  char Peek() const {
    if (position_ >= text_.size()) rt_.Fail("incomplete format");
    return text_[position_];
  }

  const Value& NextArgument() {
    if (arguments_.Is(Type::kTuple)) {
      if (used_ >= arguments_.items().size()) rt_.Fail("not enough arguments for format string");
      return arguments_.items()[used_++];
    }
    if (used_++ > 0) rt_.Fail("not enough arguments for format string");
    return arguments_;
  }

  int64_t ReadInt() {
    if (Peek() == '*') {
      ++position_;
      return ToIndex(rt_, NextArgument(), "* wants int");
    }
    int64_t value = 0;
    while (Peek() >= '0' && Peek() <= '9') {
      value = value * 10 + (text_[position_++] - '0');
      if (value > rt_.limits().string_bytes) rt_.Fail("width or precision too big");
    }
    return value;
  }

  void Convert() {
    ++position_;
    std::optional<Value> keyed;
    if (Peek() == '(') keyed = ReadKey();
    FormatSpec spec;
    bool left = false, zero = false;
    for (; std::string_view("-+ 0#").find(Peek()) != std::string_view::npos; ++position_) {
      const char flag = text_[position_];
      left |= flag == '-';
      zero |= flag == '0';
      spec.alternate |= flag == '#';
      if (flag == '+' || (flag == ' ' && spec.sign != '+')) spec.sign = flag;
    }
    spec.width = ReadInt();
    if (spec.width < 0) {
      left = true;
      spec.width = -spec.width;
    }
    if (Peek() == '.') {
      ++position_;
      spec.precision = std::max<int64_t>(ReadInt(), 0);
    }
    while (Peek() == 'h' || Peek() == 'l' || Peek() == 'L') ++position_;
    const char type = Peek();
    ++position_;
    if (type == '%') {
      out_.Append('%');
      return;
    }
    const Value value = keyed.has_value() ? *keyed : NextArgument();
    spec.align = left ? '<' : '>';
    if (zero && !left && type != 's' && type != 'r' && type != 'c') {
      spec.align = '=';
      spec.fill = "0";
    }
    AppendPadded(rt_, spec, '>', ConvertValue(spec, type, value), &out_);
  }

  Value ReadKey() {
    const size_t begin = ++position_;
    for (int depth = 1; depth > 0; ++position_) {
      if (Peek() == '(') ++depth;
      if (Peek() == ')') --depth;
    }
    if (!arguments_.Is(Type::kDict)) rt_.Fail("format requires a mapping");
    const std::string key = text_.substr(begin, position_ - 1 - begin);
    const Value* found = arguments_.As<Dict>().Find(key);
    if (found == nullptr) rt_.Fail("format has no value for the key '{}'", key);
    return *found;
  }

  MarkedString Cut(MarkedString text, int64_t precision) const {
    if (precision < 0) return text;
    return text.Sub(0, ByteOffset(text.text(), static_cast<size_t>(precision)));
  }

  MarkedString ConvertValue(FormatSpec spec, char type, const Value& value) {
    switch (type) {
      case 's':
        return Cut(Str(rt_, value), spec.precision);
      case 'r': {
        MarkedString repr;
        AppendRepr(rt_, value, &repr);
        return Cut(std::move(repr), spec.precision);
      }
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
        return ConvertInteger(spec, type, value);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        RequireDefined(rt_, value);
        if (!value.IsNumber()) rt_.Fail("must be real number, not {}", TypeName(value));
        spec.type = type;
        return MarkedString(FormatNumber(rt_, spec, value));
      case 'c':
        if (value.IsString() && CountCodePoints(value.text()) == 1) return value.string();
        rt_.Fail("%c requires a single character");
      case 'a':
        rt_.FailUnsupported("the conversion %a is not supported");
      default:
        rt_.Fail("unsupported format character '{}'", type);
    }
  }

  MarkedString ConvertInteger(FormatSpec spec, char type, const Value& value) {
    RequireDefined(rt_, value);
    const bool decimal = type == 'd' || type == 'i' || type == 'u';
    Value number = value;
    if (decimal && value.Is(Type::kFloat)) {
      if (!(std::fabs(value.number()) < 9e18)) rt_.Fail("cannot convert this float to an integer");
      number = Value::Int(static_cast<int64_t>(value.number()));
    }
    if (!number.IsInteger()) {
      rt_.Fail("%{} format: {} is required, not {}", type, decimal ? "a real number" : "an integer",
               TypeName(value));
    }
    if (spec.precision >= 0) rt_.FailUnsupported("a precision of an integer in a format");
    spec.type = decimal ? 'd' : type;
    return MarkedString(FormatNumber(rt_, spec, number));
  }

  Runtime& rt_;
  const MarkedString& format_;
  const std::string& text_;
  const Value& arguments_;
  size_t position_ = 0;
  size_t used_ = 0;
  MarkedString out_;
};

}  // namespace

Value PercentFormat(Runtime& rt, const MarkedString& format, const Value& arguments) {
  if (format.markup()) rt.FailUnsupported("'%' on a string marked safe is not supported");
  return rt.MakeString(PercentFormatter(rt, format, arguments).Run());
}

}  // namespace litecache::tokenizer::jinja
