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
  // Throws InvalidArgument for an empty key, or one that no header can carry.
  void Add(std::string_view key);
  // One key a line; empty lines and those that begin with '#' are none. Throws FileError.
  void AddFile(const std::filesystem::path& path);
  bool empty() const { return digests_.empty(); }

  // The number of the key in an Authorization header's value, "Bearer KEY"; none where there is no
  // such key. How long it takes tells nothing about the keys: digests are compared, all of them and
  // in full.
  std::optional<size_t> Find(std::string_view authorization) const;
  bool Allows(std::string_view authorization) const { return Find(authorization).has_value(); }

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest Hash(std::string_view key);
  std::vector<Digest> digests_;
};

}  // namespace litecache::server
