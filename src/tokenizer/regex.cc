#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdint>
#include <new>

#include "base/error.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace litecache::tokenizer {
namespace {

// Limit on backtracking steps per search. Real patterns need about one per character even on a
// megabyte of spaces (one piece); patterns with nested repeats can need exponentially many.
constexpr uint32_t kMatchLimit = 50'000'000;
constexpr size_t kMaxPattern = 1 << 16;

// One stack per thread for compiled code, larger than PCRE2's 32 KiB; grows on demand.
pcre2_jit_stack* JitStack(void*) {
  struct Deleter {
    void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
  };
  thread_local const std::unique_ptr<pcre2_jit_stack, Deleter> stack(
      pcre2_jit_stack_create(32 << 10, 16 << 20, nullptr));
  return stack.get();
}

}  // namespace

std::string EscapePattern(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view(R"(\.+*?()|[]{}^$#&-~)").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

struct Regex::Compiled {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  std::string where;

  Compiled() = default;
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
  ~Compiled() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
};

Regex::Regex(std::string_view pattern, std::string_view where) {
  if (pattern.size() > kMaxPattern) {
    throw Unsupported("{}: a pattern of {} bytes (at most {} are supported)", where, pattern.size(),
                      kMaxPattern);
  }
  const std::string translated = TranslatePattern(pattern, where);
  auto compiled = std::make_shared<Compiled>();
  compiled->where = where;
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t offset = 0;
  // Oniguruma's anchors ^ and $ always apply to lines.
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                 &error, &offset, context.get());
  if (compiled->code == nullptr) {
    char message[256] = {};
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof(message));
    throw FileError("{}: the pattern \"{}\" cannot be compiled: {}", where, pattern, message);
  }
  // If compiled code is not possible (a hardened kernel), the slower interpreter gives the same
  // results.
  pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);
  compiled->context = pcre2_match_context_create(nullptr);
  if (compiled->context == nullptr) throw std::bad_alloc();
  pcre2_set_match_limit(compiled->context, kMatchLimit);
  pcre2_jit_stack_assign(compiled->context, &JitStack, nullptr);
  compiled_ = std::move(compiled);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

struct Regex::Matcher::State {
  std::shared_ptr<const Compiled> compiled;
  pcre2_match_data* data = nullptr;
  std::string_view text;
  std::string scratch;
  size_t position = 0;
  size_t last_end = 0;
  bool matched_before = false;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { pcre2_match_data_free(data); }
};

Regex::Matcher::Matcher(const Regex& regex) : state_(std::make_unique<State>()) {
  state_->compiled = regex.compiled_;
  state_->data = pcre2_match_data_create(1, nullptr);
  if (state_->data == nullptr) throw std::bad_alloc();
}

Regex::Matcher::~Matcher() = default;

void Regex::Matcher::Start(std::string_view text) {
  state_->text = WithStandIns(text, &state_->scratch);
  state_->position = 0;
  state_->matched_before = false;
}

bool Regex::Matcher::Next(size_t* begin, size_t* end) {
  State& s = *state_;
  while (s.position <= s.text.size()) {
    const auto search = [&](uint32_t options) {
      return pcre2_match(s.compiled->code, reinterpret_cast<PCRE2_SPTR>(s.text.data()),
                         s.text.size(), s.position, options | PCRE2_NO_UTF_CHECK, s.data,
                         s.compiled->context);
    };
    int result = search(0);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = search(PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      char message[256] = {};
      pcre2_get_error_message(result, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof(message));
      throw InvalidArgument("{}: matching the pattern exceeded its limit: {}", s.compiled->where,
                            message);
    }
    const size_t* offsets = pcre2_get_ovector_pointer(s.data);
    // offsets[0] <= offsets[1]: only \K in a look-behind could reverse them, and TranslatePattern
    // rejects \K.
    *begin = offsets[0];
    *end = offsets[1];
    if (*begin == *end && s.matched_before && s.last_end == *end) {
      s.position += s.position < s.text.size()
                        ? SequenceLength(static_cast<unsigned char>(s.text[s.position]))
                        : 1;
      continue;
    }
    s.position = *end;
    s.last_end = *end;
    s.matched_before = true;
    return true;
  }
  s.position = s.text.size() + 1;
  return false;
}

}  // namespace litecache::tokenizer
