// Typed access to the fields of a JSON object, with errors that name the field.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace litecache::tokenizer {

using Json = nlohmann::json;

// A position in a file, for messages: "tokenizer.json: normalizer.normalizers[1]".
inline std::string At(std::string_view where, std::string_view key) {
  return fmt::format("{}{}{}", where, where.ends_with(": ") ? "" : ".", key);
}
inline std::string At(std::string_view where, std::string_view key, size_t index) {
  return fmt::format("{}[{}]", At(where, key), index);
}

// A value for messages, at most 80 characters of it. Nested values are not shown: printing them
// would recurse as deep as a hostile file nests.
inline std::string Shown(const Json& value) {
  if (value.is_structured()) {
    bool nested = value.size() > 4;
    for (const Json& item : value) nested |= item.is_structured();
    if (nested) return value.is_array() ? "[...]" : "{...}";
  }
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

// The field, or nullptr if it is absent or null.
inline const Json* FindField(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

inline const Json& RequireField(const Json& object, std::string_view key, std::string_view where) {
  const Json* field = FindField(object, key);
  if (field == nullptr) throw FileError("{}: missing", At(where, key));
  return *field;
}

inline const std::string& AsString(const Json& value, std::string_view where) {
  if (!value.is_string()) throw FileError("{}: {} is not a string", where, Shown(value));
  return value.get_ref<const std::string&>();
}

inline const Json& AsArray(const Json& value, std::string_view where) {
  if (!value.is_array()) throw FileError("{}: {} is not an array", where, Shown(value));
  return value;
}

inline const std::string& RequireString(const Json& object, std::string_view key,
                                        std::string_view where) {
  return AsString(RequireField(object, key, where), At(where, key));
}

inline std::string StringOr(const Json& object, std::string_view key, std::string_view fallback,
                            std::string_view where) {
  const Json* field = FindField(object, key);
  return field == nullptr ? std::string(fallback) : AsString(*field, At(where, key));
}

inline bool BoolOr(const Json& object, std::string_view key, bool fallback,
                   std::string_view where) {
  const Json* field = FindField(object, key);
  if (field == nullptr) return fallback;
  if (!field->is_boolean()) {
    throw FileError("{}: {} is neither true nor false", At(where, key), Shown(*field));
  }
  return field->get<bool>();
}

// Ids determine the size of the tables they index; the largest vocabularies in use have 2^18
// entries.
inline constexpr int64_t kMaxTokenId = (1 << 24) - 1;

inline int32_t AsTokenId(const Json& value, std::string_view where) {
  if (!value.is_number_integer()) throw FileError("{}: {} is not a token id", where, Shown(value));
  if ((value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{kMaxTokenId}) ||
      value.get<int64_t>() < 0 || value.get<int64_t>() > kMaxTokenId) {
    throw FileError("{}: the token id {} is outside 0..{}", where, Shown(value), kMaxTokenId);
  }
  return value.get<int32_t>();
}

// A count of characters and the like: 0 <= value <= 2^20.
inline size_t CountOr(const Json& object, std::string_view key, size_t fallback,
                      std::string_view where) {
  const Json* field = FindField(object, key);
  if (field == nullptr) return fallback;
  if (!field->is_number_unsigned() || field->get<uint64_t>() > (1u << 20)) {
    throw FileError("{}: {} is not a count up to {}", At(where, key), Shown(*field), 1u << 20);
  }
  return field->get<size_t>();
}

// Sequences nest; a deeper file is rejected.
inline constexpr int kMaxDepth = 16;

inline void CheckDepth(int depth, std::string_view where) {
  if (depth > kMaxDepth) throw Unsupported("{}: nested more than {} deep", where, kMaxDepth);
}

}  // namespace litecache::tokenizer
