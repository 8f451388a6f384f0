// JSON files with precise errors: the file, line and column of a syntax error; or the field, its
// value and what was expected instead.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "io/json_parser.h"

namespace litecache::io {

// Parses the text of a file, within JsonLimits' defaults. `name` (a path) begins the message of the
// FileError for malformed text; `first_line`: the line of the file at which the text begins.
nlohmann::json ParseJson(std::string_view text, const std::string& name,
                         DuplicateKeys duplicates = DuplicateKeys::kLastWins,
                         int64_t first_line = 1);
// Throws FileError for a file that is missing, unreadable or malformed.
nlohmann::json ReadJsonFile(const std::filesystem::path& path);

// A JSON value shortened for a message: `"abc"`, `[1, 2, 3...`.
std::string Excerpt(const nlohmann::json& value);

// A JSON object whose fields are read with their type and range checked. A null field counts as
// absent, as in Hugging Face configs. All errors are FileError "path: field 'a.b' ...".
class JsonFields {
 public:
  // Throws FileError if `object` is not a JSON object. `object` must outlive this object.
  JsonFields(const nlohmann::json& object, std::string name, std::string prefix = "");

  // Whether the field is present and not null.
  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  // Whether the field is present and null, where this is not the same as absent.
  bool IsNull(std::string_view key) const;
  // The value, or null when absent.
  const nlohmann::json* Find(std::string_view key) const;

  std::optional<int64_t> Int(std::string_view key, int64_t low, int64_t high) const;
  std::optional<double> Number(std::string_view key, double low, double high) const;
  std::optional<bool> Bool(std::string_view key) const;
  std::optional<std::string> String(std::string_view key) const;
  // One integer or a list of integers.
  std::vector<int64_t> IntOrInts(std::string_view key, int64_t low, int64_t high) const;
  std::optional<std::vector<std::string>> Strings(std::string_view key) const;
  // A nested object, or nullopt when absent.
  std::optional<JsonFields> Object(std::string_view key) const;

  int64_t RequiredInt(std::string_view key, int64_t low, int64_t high) const;
  double RequiredNumber(std::string_view key, double low, double high) const;
  std::string RequiredString(std::string_view key) const;
  std::vector<std::string> RequiredStrings(std::string_view key) const;

  const std::string& name() const { return name_; }
  // "rope_scaling.factor": the field's name in messages.
  std::string Path(std::string_view key) const;
  // Throws FileError "name: field 'path' = value: reason".
  [[noreturn]] void Fail(std::string_view key, const std::string& reason) const;
  // Throws Unsupported "name: field 'path' = value is not supported: reason".
  [[noreturn]] void Refuse(std::string_view key, const std::string& reason) const;

 private:
  [[noreturn]] void Missing(std::string_view key, const std::string& expected) const;

  const nlohmann::json* object_;
  std::string name_;
  std::string prefix_;
};

}  // namespace litecache::io
