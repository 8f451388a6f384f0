#include "grammar/scalar_writer.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "grammar/decimal.h"
#include "grammar/pattern.h"
#include "grammar/schema_keywords.h"
#include "grammar/vocabulary.h"

namespace litecache::grammar {
namespace {

// Characters of names of fields without quotes.
const CharacterSet kBareNames = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};

// Formats that restrict the text; others are annotations, which is JSON Schema's default.
const std::map<std::string, std::string, std::less<>>& Formats() {
  constexpr const char* kDate =
      "[0-9]{4}-(0[13578]-(0[1-9]|[12][0-9]|3[01])|1[02]-(0[1-9]|[12][0-9]|3[01])|0[469]-(0[1-9]|["
      "12]"
      "[0-9]|30)|11-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))";
  constexpr const char* kTime =
      "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]"
      ")";
  static const std::map<std::string, std::string, std::less<>> kFormats = {
      {"date", fmt::format("^{}$", kDate)},
      {"time", fmt::format("^{}$", kTime)},
      {"date-time", fmt::format("^{}T{}$", kDate, kTime)},
      {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
      {"ipv4",
       "^((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\\.){3}"
       "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])$"},
      {"email",
       "^[A-Za-z0-9_+-]{1,30}(\\.[A-Za-z0-9_+-]{1,30}){0,4}@[A-Za-z0-9]([A-Za-z0-9-]{0,30}"
       "[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?){1,4}$"}};
  return kFormats;
}

}  // namespace

std::optional<CharacterAutomaton> ScalarWriter::Pattern(const Subschema& s) {
  std::string pattern, keyword;
  if (s.schema.contains("format")) {
    const Json& format = Expect(s, "format", Json::value_t::string, "a text");
    const auto found = Formats().find(format.get<std::string>());
    if (found != Formats().end()) {
      pattern = found->second;
      keyword = "format";
    }
  }
  if (s.schema.contains("pattern")) {
    if (!pattern.empty()) {
      throw Unsupported("{}: 'pattern' beside 'format' = {} is not supported", s.path,
                        Shown(s.schema["format"]));
    }
    pattern = Expect(s, "pattern", Json::value_t::string, "a text").get<std::string>();
    keyword = "pattern";
  }
  if (keyword.empty()) return std::nullopt;
  try {
    return ParsePattern(pattern);
  } catch (const Unsupported& error) {
    throw Unsupported("{}/{}: {}", s.path, keyword, error.what());
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("{}/{}: {}", s.path, keyword, error.what());
  }
}

void ScalarWriter::String(const Subschema& s, StateId from, StateId to) {
  const bool any = !s.schema.is_object();
  if (any && quotes_) return Quoted(AllBut({}), 0, kUnlimited, from, to);
  if (any) return PlainString(0, kUnlimited, from, to);
  const uint32_t min = Count(s, "minLength", 0), max = Count(s, "maxLength", kUnlimited);
  const auto pattern = Pattern(s);
  if (quotes_) return Quoted(pattern.value_or(AllBut({})), min, max, from, to);
  if (!pattern) return PlainString(min, max, from, to);
  const StateId open = builder_.Literal(from, "\"");
  const StateId close = builder_.Add();
  characters_.All(open, *pattern, min, max, close);
  builder_.Byte(close, '"', to);
}

void ScalarWriter::Parameter(const Subschema& s, std::string_view end_tag, StateId from,
                             StateId to) {
  const std::u32string end = ToCharacters(end_tag);
  if (!s.schema.is_object()) return plain_.All(from, Without(end, AllBut({})), 0, kUnlimited, to);
  const uint32_t min = Count(s, "minLength", 0), max = Count(s, "maxLength", kUnlimited);
  plain_.All(from, Without(end, Pattern(s).value_or(AllBut({}))), min, max, to);
}

void ScalarWriter::PlainString(uint32_t min, uint32_t max, StateId from, StateId to) {
  if (min > max) return;
  // Escapes and characters of several bytes. \u escapes of UTF-16 surrogates come in pairs.
  StateId& rest = shared_["character"];
  if (rest == 0) {
    rest = builder_.Add();
    const StateId end = builder_.AddEnd();
    const StateId escape = builder_.Literal(rest, "\\");
    for (const char c : {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'}) builder_.Byte(escape, c, end);
    const auto hex = [&](StateId before, std::string_view digits, StateId after) {
      for (const char c : digits) builder_.Byte(before, c, after);
    };
    constexpr std::string_view kHex = "0123456789abcdefABCDEF";
    const auto any = [&](StateId before, int count, StateId after) {
      for (; count > 1; --count) {
        const StateId next = builder_.Add();
        hex(before, kHex, next);
        before = next;
      }
      hex(before, kHex, after);
    };
    const StateId u = builder_.Literal(escape, "u");
    const StateId three = builder_.Add(), d = builder_.Add(), two = builder_.Add();
    hex(u, "0123456789abcefABCEF", three);
    any(three, 3, end);
    hex(u, "dD", d);
    hex(d, "01234567", two);
    any(two, 2, end);
    const StateId high = builder_.Add(), low = builder_.Add(), low_two = builder_.Add();
    hex(d, "89abAB", high);
    const StateId second = builder_.Add();
    any(high, 2, second);
    const StateId low_u = builder_.Literal(second, "\\u");
    hex(low_u, "dD", low);
    hex(low, "cdefCDEF", low_two);
    any(low_two, 2, end);
    WriteUtf8(&builder_, rest, 0x80, 0xD7FF, end);
    WriteUtf8(&builder_, rest, 0xE000, 0x10FFFF, end);
  }
  const auto one = [&](StateId before, StateId after) {
    builder_.Bytes(before, 0x20, 0x21, after);  // all but " and backslash
    builder_.Bytes(before, 0x23, 0x5B, after);
    builder_.Bytes(before, 0x5D, 0x7F, after);
    builder_.Call(before, rest, after);
  };
  const uint32_t counted = max == kUnlimited ? min : max;
  StateId state = builder_.Literal(from, "\"");
  for (uint32_t i = 0;; ++i) {
    if (i >= min) builder_.Byte(state, '"', to);
    if (i == counted) break;
    builder_.SetPlain(state, max == kUnlimited ? kUnlimited : max - i);
    const StateId next = builder_.Add();
    one(state, next);
    state = next;
  }
  if (max == kUnlimited) {
    builder_.SetPlain(state, kUnlimited);
    one(state, state);
  }
}

std::string ScalarWriter::Quote() const {
  return (quotes_->control ? std::string(1, kControl) : "") + std::string(quotes_->text);
}

void ScalarWriter::Quoted(const CharacterAutomaton& characters, uint32_t min, uint32_t max,
                          StateId from, StateId to) {
  const StateId close = builder_.Add();
  plain_.All(builder_.Literal(from, Quote()), Without(ToCharacters(quotes_->text), characters), min,
             max, close);
  builder_.Literal(close, Quote(), to);
}

std::optional<std::string> ScalarWriter::Name(const std::string& name) const {
  if (!quotes_) return Json(name).dump();
  constexpr std::string_view kBlanks = " \n\r\t";
  const bool bare = !name.empty() && name.find_first_of(":,{}[]<>\"\n\r\t") == std::string::npos &&
                    kBlanks.find(name.front()) == std::string_view::npos &&
                    kBlanks.find(name.back()) == std::string_view::npos;
  return bare ? std::optional(name) : std::nullopt;
}

std::optional<std::string> ScalarWriter::Text(const Json& value) const {
  if (!quotes_ || !(value.is_string() || value.is_structured())) return value.dump();
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (text.find(quotes_->text) != std::string::npos) return std::nullopt;
    return Quote() + text + Quote();
  }
  std::string text(value.is_object() ? "{" : "[");
  for (const auto& [key, element] : value.items()) {
    const auto name = value.is_object() ? Name(key) : std::optional<std::string>();
    const auto written = Text(element);
    if (!written || (value.is_object() && !name)) return std::nullopt;
    if (text.size() > 1) text += ',';
    if (name) text += *name + ':';
    text += *written;
  }
  return text + (value.is_object() ? '}' : ']');
}

StateId ScalarWriter::Key(const std::vector<std::string>& but) {
  std::string name = "key";
  for (const std::string& other : but) name += Json(other).dump();
  StateId& rule = shared_[name];
  if (rule != 0) return rule;
  rule = builder_.Add();
  const StateId end = builder_.AddEnd();
  std::vector<std::u32string> texts;
  texts.reserve(but.size());
  for (const std::string& other : but) texts.push_back(ToCharacters(other));
  if (quotes_) {
    // In quotes, or of characters that need none.
    Quoted(AllBut(texts), 0, kUnlimited, rule, end);
    texts.emplace_back();
    CharacterAutomaton bare = AllBut(texts);
    const CharacterSet others = kBareNames.Complement();
    for (CharacterAutomaton::Node& node : bare.nodes) {
      for (CharacterAutomaton::Edge& edge : node.edges) {
        CharacterSet left_out = edge.characters.Complement();
        left_out.Add(others);
        edge.characters = left_out.Complement();
      }
    }
    plain_.All(shared_[name], bare, 1, kUnlimited, end);
    return shared_[name];
  }
  if (but.empty()) {
    PlainString(0, kUnlimited, rule, end);
    return shared_[name];
  }
  // Characters have only one notation here, so that no escape can spell one of the names.
  const StateId open = builder_.Literal(rule, "\"");
  const StateId close = builder_.Add();
  characters_.All(open, AllBut(texts), 0, kUnlimited, close);
  builder_.Byte(close, '"', end);
  return rule;
}

void ScalarWriter::Number(const Subschema& s, bool integer, StateId from, StateId to) {
  NumberBounds bounds;
  bounds.fraction_digits = integer ? 0 : kFractionDigits;
  if (s.schema.is_object()) {
    const auto read = [&](const char* keyword, bool low, bool excluded) {
      const auto found = s.schema.find(keyword);
      if (found == s.schema.end()) return;
      if (!found->is_number()) {
        throw InvalidArgument("{}/{}: {} is no number", s.path, keyword, Shown(*found));
      }
      const auto value = ParseDecimal(found->dump());
      if (!value) {
        // Outside the range of all numbers that are written.
        if (std::abs(found->get<double>()) > 1 && (found->get<double>() < 0) == low) return;
        throw Unsupported("{}/{}: {} has too many digits", s.path, keyword, Shown(*found));
      }
      auto& bound = low ? bounds.low : bounds.high;
      auto& is_excluded = low ? bounds.low_excluded : bounds.high_excluded;
      if (bound) {
        // Of minimum and exclusiveMinimum the stricter one applies.
        const char* other = low ? "minimum" : "maximum";
        const double mine = found->get<double>(), before = s.schema[other].get<double>();
        if (low ? mine < before : mine > before) return;
      }
      bound = *value;
      is_excluded = excluded;
    };
    read("minimum", true, false);
    read("exclusiveMinimum", true, true);
    read("maximum", false, false);
    read("exclusiveMaximum", false, true);
    if (const auto found = s.schema.find("multipleOf"); found != s.schema.end()) {
      // A power of ten becomes a number of digits after the point.
      const auto step = found->is_number() ? ParseDecimal(found->dump()) : std::nullopt;
      if (step && !step->negative && step->whole == "1" && step->fraction.empty()) {
        bounds.fraction_digits = 0;
      } else if (step && !step->negative && step->whole == "0" && !step->fraction.empty() &&
                 step->fraction.find_first_not_of('0') == step->fraction.size() - 1 &&
                 step->fraction.back() == '1') {
        bounds.fraction_digits =
            std::min(bounds.fraction_digits, static_cast<int>(step->fraction.size()));
      } else {
        throw Unsupported("{}/multipleOf: {} is not supported: 1, 0.1, 0.01 and so on are", s.path,
                          Shown(*found));
      }
      return WriteNumber(&builder_, from, bounds, to);
    }
  }
  if (bounds.bounded()) return WriteNumber(&builder_, from, bounds, to);

  StateId& rule = shared_[integer ? "integer" : "number"];
  if (rule == 0) {
    rule = builder_.Add();
    const StateId end = builder_.AddEnd();
    const StateId whole = builder_.Add();  // after the whole digits
    const StateId minus = builder_.Literal(rule, "-");
    builder_.Byte(rule, '0', whole);
    if (!integer) builder_.Byte(minus, '0', whole);
    const auto digits = [&](StateId before, char first, int most, StateId after) {
      for (int i = 0; i < most; ++i) {
        const StateId next = builder_.Add();
        builder_.Bytes(before, static_cast<uint8_t>(i == 0 ? first : '0'), '9', next);
        builder_.Jump(next, after);
        before = next;
      }
    };
    digits(rule, '1', kWholeDigits, whole);
    digits(minus, '1', kWholeDigits, whole);
    builder_.Jump(whole, end);
    if (!integer) {
      const StateId fraction = builder_.Add();  // after the digits of the fraction
      builder_.Jump(whole, fraction);
      digits(builder_.Literal(whole, "."), '0', kFractionDigits, fraction);
      const StateId e = builder_.Add(), exponent = builder_.Add();
      builder_.Byte(fraction, 'e', e);
      builder_.Byte(fraction, 'E', e);
      builder_.Byte(e, '+', exponent);
      builder_.Byte(e, '-', exponent);
      builder_.Jump(e, exponent);
      digits(exponent, '0', 2, end);
      builder_.Jump(fraction, end);
    }
  }
  builder_.Call(from, rule, to);
}

}  // namespace litecache::grammar
