// Translates Oniguruma syntax to PCRE2 syntax.
#include <algorithm>
#include <array>
#include <cctype>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tokenizer/regex.h"

namespace litecache::tokenizer {
namespace {

// \w as in Oniguruma; PCRE2's lacks marks and connectors.
constexpr std::string_view kWordClass = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kHex = "0-9A-Fa-f";

constexpr std::array<std::pair<std::string_view, std::string_view>, 20> kLongNames = {{
    {"letter", "L"},
    {"mark", "M"},
    {"number", "N"},
    {"punctuation", "P"},
    {"symbol", "S"},
    {"separator", "Z"},
    {"other", "C"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"alpha", "Alphabetic"},
    {"alphabetic", "Alphabetic"},
    {"upper", "Uppercase"},
    {"lower", "Lowercase"},
    {"any", "Any"},
}};

constexpr std::string_view kCategories =
    " C Cc Cf Cn Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So "
    "Z Zl Zp Zs ";

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : in_(pattern), where_(where) {}

  std::string Run() {
    while (!AtEnd()) Item();
    return std::move(out_);
  }

 private:
  bool AtEnd() const { return at_ >= in_.size(); }
  char Peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool Accept(std::string_view text) {
    if (in_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }

  [[noreturn]] void Refuse(std::string_view what) const {
    throw Unsupported("{}: {} in the pattern \"{}\" is not supported", where_, what, in_);
  }

  void BeginAtom() { atom_ = out_.size(); }

  void Item() {
    const char c = Peek();
    if (c == '(') return OpenGroup();
    if (c == ')') {
      if (groups_.empty()) Refuse("an unmatched \")\"");
      out_ += ')';
      ++at_;
      atom_ = groups_.back();
      groups_.pop_back();
      return;
    }
    if (c == '*' || c == '+' || c == '?') {
      out_ += c;
      ++at_;
      if (Peek() == '?' || Peek() == '+') out_ += in_[at_++];
      return;
    }
    if (c == '{' && Interval()) return;
    if (c == '[') return Class();
    if (c == '\\') return Escape();
    BeginAtom();
    if (c == '{' || c == '}' || c == ']') out_ += '\\';
    // A multi-byte character is copied byte by byte; only its first byte begins the atom.
    out_ += c;
    ++at_;
    while (!AtEnd() && (static_cast<unsigned char>(Peek()) & 0xC0) == 0x80) out_ += in_[at_++];
  }

  void OpenGroup() {
    const size_t begin = out_.size();
    if (Peek(1) != '?') {
      out_ += '(';
      ++at_;
      groups_.push_back(begin);
      return;
    }
    for (const std::string_view kind : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (Accept(kind)) {
        out_ += kind;
        groups_.push_back(begin);
        return;
      }
    }
    // Options: i stays i, m (the dot matches newlines) becomes s; x changes the syntax of the rest.
    size_t i = at_ + 2;
    std::string options;
    while (i < in_.size() && (in_[i] == 'i' || in_[i] == 'm' || in_[i] == '-')) {
      options += in_[i] == 'm' ? 's' : in_[i];
      ++i;
    }
    if (i < in_.size() && in_[i] == ':') {
      out_ += fmt::format("(?{}:", options);
      at_ = i + 1;
      groups_.push_back(begin);
      return;
    }
    // Later in a pattern, the two engines differ in whether an option covers the alternatives that
    // follow.
    if (i < in_.size() && in_[i] == ')' && at_ == 0) {
      out_ += fmt::format("(?{})", options);
      at_ = i + 1;
      return;
    }
    Refuse(fmt::format("\"{}\"", in_.substr(at_, 4)));
  }

  // Parses {n}, {n,}, {n,m}, {,m}. Returns false if the brace is a literal.
  bool Interval() {
    size_t i = at_ + 1;
    std::string low;
    std::string high;
    while (i < in_.size() && std::isdigit(static_cast<unsigned char>(in_[i]))) low += in_[i++];
    bool comma = false;
    if (i < in_.size() && in_[i] == ',') {
      comma = true;
      ++i;
      while (i < in_.size() && std::isdigit(static_cast<unsigned char>(in_[i]))) high += in_[i++];
    }
    if (i >= in_.size() || in_[i] != '}' || (low.empty() && high.empty())) return false;
    at_ = i + 1;
    if (low.empty()) low = "0";
    out_ += '{' + low;
    if (comma) out_ += ',' + high;
    out_ += '}';
    // After an interval, + is a second repeat, not "possessive"; so is ? after {n}.
    if (Peek() == '+' || (Peek() == '?' && !comma)) {
      out_.insert(atom_, "(?:");
      out_ += ')';
      out_ += in_[at_++];
    } else if (Peek() == '?') {
      out_ += in_[at_++];
    }
    return true;
  }

  // Translates "\p{Name}" at at_ (after the backslash) to "\p{...}".
  std::string Property() {
    bool negated = Peek() == 'P';
    ++at_;
    if (!Accept("{")) Refuse("\\p without braces");
    if (Accept("^")) negated = !negated;
    const size_t close = in_.find('}', at_);
    if (close == std::string_view::npos) Refuse("\\p{ without }");
    const std::string_view name = in_.substr(at_, close - at_);
    at_ = close + 1;
    std::string plain;
    for (const char c : name) {
      if (c == '_' || c == ' ' || c == '-') continue;
      if (!std::isalnum(static_cast<unsigned char>(c))) {
        Refuse(fmt::format("the property \"{}\"", name));
      }
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    if (plain.empty()) Refuse("an empty property name");
    std::string mapped;
    if (plain.size() <= 2) {
      mapped = plain;
      mapped[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(mapped[0])));
      if (kCategories.find(fmt::format(" {} ", mapped)) == std::string_view::npos) {
        Refuse(fmt::format("the property \"{}\"", name));
      }
    }
    for (const auto& [longer, category] : kLongNames) {
      if (plain == longer) mapped = category;
    }
    // A script. PCRE2 would include script extensions, Oniguruma does not.
    if (mapped.empty()) mapped = fmt::format("sc:{}", plain);
    return fmt::format("\\{}{{{}}}", negated ? 'P' : 'p', mapped);
  }

  // The code point after \x or \u, as "\x{...}".
  std::string CodePoint(char kind) {
    ++at_;
    std::string digits;
    if (kind == 'x' && Accept("{")) {
      while (std::isxdigit(static_cast<unsigned char>(Peek()))) digits += in_[at_++];
      if (!Accept("}")) Refuse("\\x{ without }");
    } else {
      const size_t most = kind == 'x' ? 2 : 4;
      while (digits.size() < most && std::isxdigit(static_cast<unsigned char>(Peek()))) {
        digits += in_[at_++];
      }
      if (kind == 'u' && digits.size() != 4) Refuse("\\u without four digits");
      // Above 0x7F, \x is a byte of an encoded character, not a code point.
      if (kind == 'x' && digits.size() == 2 && digits[0] > '7') Refuse("a byte \\x80 to \\xFF");
    }
    if (digits.empty()) Refuse("\\x without digits");
    return fmt::format("\\x{{{}}}", digits);
  }

  // Escapes for one character, inside and outside classes; empty if it is none of them.
  std::string CharacterEscape() {
    const char c = Peek();
    switch (c) {
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        ++at_;
        return std::string("\\") + c;
      case 'v':
        ++at_;
        return "\\x{0B}";
      case 'x':
      case 'u':
        return CodePoint(c);
      default:
        break;
    }
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '\0') return {};
    // An escaped sign or multi-byte character stands for itself.
    ++at_;
    return (c & 0x80) != 0 ? std::string(1, c) : std::string("\\") + c;
  }

  void Escape() {
    BeginAtom();
    ++at_;
    const char c = Peek();
    switch (c) {
      case 'p':
      case 'P':
        out_ += Property();
        return;
      case 's':
      case 'S':
      case 'd':
      case 'D':
      case 'A':
      case 'z':
      case 'Z':
        out_ += {'\\', c};
        break;
      case 'w':
        out_ += fmt::format("[{}]", kWordClass);
        break;
      case 'W':
        out_ += fmt::format("[^{}]", kWordClass);
        break;
      case 'h':
        out_ += fmt::format("[{}]", kHex);
        break;
      case 'H':
        out_ += fmt::format("[^{}]", kHex);
        break;
      case 'b':
        out_ += fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", kWordClass);
        break;
      case 'B':
        out_ += fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", kWordClass);
        break;
      default: {
        const std::string escaped = CharacterEscape();
        if (escaped.empty()) Refuse(fmt::format("\"\\{}\"", in_.substr(at_, 1)));
        out_ += escaped;
        while (!AtEnd() && (static_cast<unsigned char>(Peek()) & 0xC0) == 0x80) out_ += in_[at_++];
        return;
      }
    }
    ++at_;
  }

  void Class() {
    BeginAtom();
    out_ += in_[at_++];
    if (Accept("^")) out_ += '^';
    if (Peek() == ']') Refuse("a class that begins with \"]\"");
    while (true) {
      if (AtEnd()) Refuse("\"[\" without \"]\"");
      const char c = Peek();
      if (c == ']') {
        out_ += in_[at_++];
        return;
      }
      if (c == '[') Refuse("a class within a class");
      if (c == '&' && Peek(1) == '&') Refuse("an intersection of classes");
      if (c != '\\') {
        out_ += in_[at_++];
        continue;
      }
      ++at_;
      switch (Peek()) {
        case 'p':
        case 'P':
          out_ += Property();
          break;
        case 's':
        case 'S':
        case 'd':
        case 'D':
        case 'b':
          out_ += {'\\', in_[at_++]};
          break;
        case 'w':
          out_ += kWordClass;
          ++at_;
          break;
        case 'h':
          out_ += kHex;
          ++at_;
          break;
        default: {
          const std::string escaped = CharacterEscape();
          if (escaped.empty()) Refuse(fmt::format("\"\\{}\" in a class", in_.substr(at_, 1)));
          out_ += escaped;
        }
      }
    }
  }

  std::string_view in_;
  std::string_view where_;
  std::string out_;
  size_t at_ = 0;
  size_t atom_ = 0;             // start of the last atom in out_
  std::vector<size_t> groups_;  // start of each open group in out_
};

}  // namespace

std::string TranslatePattern(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).Run();
}

}  // namespace litecache::tokenizer
