// API keys.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace litecache::server {

class ApiKeys {
 public:
  // Throws InvalidArgument for an empty key or one that no header can carry.
  void Add(std::string_view key);
  // One key per line; empty lines and lines that begin with '#' are skipped. Throws FileError.
  void AddFile(const std::filesystem::path& path);
  bool empty() const { return digests_.empty(); }

  // The index of the key in the value of an Authorization header, "Bearer KEY"; none if there is no
  // such key. The time taken reveals nothing about the keys: the digests of all keys are compared
  // in full.
  std::optional<size_t> Find(std::string_view authorization) const;
  bool Allows(std::string_view authorization) const { return Find(authorization).has_value(); }

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest Hash(std::string_view key);
  std::vector<Digest> digests_;
};

}  // namespace litecache::server
