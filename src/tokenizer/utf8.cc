#include "tokenizer/utf8.h"

#include "base/error.h"

namespace litecache::tokenizer {
namespace {

enum class Form { kComplete, kIncomplete, kInvalid };

struct Scan {
  Form form;
  size_t length;  // of the character, or of the ill-formed or incomplete prefix
};

// Scans the well-formed character or the maximal ill-formed subpart at the start of `bytes`
// (Unicode 15, table 3-7). kIncomplete: `bytes` ends within a possible character.
Scan ScanCharacter(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return {Form::kComplete, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Form::kInvalid, 1};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  for (size_t i = 1; i < length; ++i) {
    if (i >= bytes.size()) return {Form::kIncomplete, i};
    unsigned char low = 0x80;
    unsigned char high = 0xBF;
    if (i == 1) {
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    }
    if (at(i) < low || at(i) > high) return {Form::kInvalid, i};
  }
  return {Form::kComplete, length};
}

}  // namespace

void AppendUtf8(char32_t code_point, std::string* out) {
  LC_CHECK(code_point < 0x110000);
  if (code_point < 0x80) {
    out->push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    out->push_back(static_cast<char>(0xC0 | code_point >> 6));
    out->push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
  } else if (code_point < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | code_point >> 12));
    out->push_back(static_cast<char>(0x80 | (code_point >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | code_point >> 18));
    out->push_back(static_cast<char>(0x80 | (code_point >> 12 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (code_point >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
  }
}

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const Scan scan = ScanCharacter(text);
    if (scan.form != Form::kComplete) return false;
    text.remove_prefix(scan.length);
  }
  return true;
}

std::string RepairUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  Utf8Repairer repairer;
  repairer.Add(bytes, &out);
  repairer.Flush(&out);
  return out;
}

void Utf8Repairer::Add(std::string_view bytes, std::string* out) {
  std::string joined;
  if (!pending_.empty()) {
    joined = pending_;
    joined += bytes;
    bytes = joined;
    pending_.clear();
  }
  while (!bytes.empty()) {
    const Scan scan = ScanCharacter(bytes);
    if (scan.form == Form::kIncomplete) {
      pending_ = bytes;
      return;
    }
    out->append(scan.form == Form::kComplete ? bytes.substr(0, scan.length)
                                             : kReplacementCharacter);
    bytes.remove_prefix(scan.length);
  }
}

void Utf8Repairer::Flush(std::string* out) {
  if (!pending_.empty()) out->append(kReplacementCharacter);
  pending_.clear();
}

}  // namespace litecache::tokenizer
