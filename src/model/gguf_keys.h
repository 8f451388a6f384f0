// The metadata of one architecture in a GGUF file.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "io/json.h"

namespace litecache::model {

// Architectures that several files here tell from others.
inline constexpr std::string_view kGemma4 = "gemma4", kGlm4Moe = "glm4moe",
                                  kMiniMaxM2 = "minimax-m2", kQwen35Moe = "qwen35moe",
                                  kQwen3Next = "qwen3next";

// The keys of one architecture: "llama.block_count".
class ArchitectureKeys {
 public:
  ArchitectureKeys(const io::JsonFields& fields, std::string architecture)
      : fields_(fields), architecture_(std::move(architecture)) {}

  std::string Name(std::string_view key) const { return fmt::format("{}.{}", architecture_, key); }
  bool Has(std::string_view key) const { return fields_.Has(Name(key)); }
  // From 1; the key must be there.
  int64_t Int(std::string_view key, int64_t high) const {
    return fields_.RequiredInt(Name(key), 1, high);
  }
  // From 0.
  int64_t Int(std::string_view key, int64_t high, int64_t fallback) const {
    return fields_.Int(Name(key), 0, high).value_or(fallback);
  }
  std::optional<double> Number(std::string_view key) const {
    return fields_.Number(Name(key), -1e15, 1e15);
  }
  std::optional<std::string> String(std::string_view key) const {
    return fields_.String(Name(key));
  }
  const std::string& architecture() const { return architecture_; }
  [[noreturn]] void Fail(std::string_view key, const std::string& reason) const {
    fields_.Fail(Name(key), reason);
  }
  [[noreturn]] void Refuse(std::string_view key, const std::string& reason) const {
    fields_.Refuse(Name(key), reason);
  }

 private:
  const io::JsonFields& fields_;
  std::string architecture_;
};

}  // namespace litecache::model
