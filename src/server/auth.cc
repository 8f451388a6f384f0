#include "server/auth.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>

#include "base/error.h"
#include "io/file.h"

namespace litecache::server {
namespace {

std::string_view Trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

}  // namespace

ApiKeys::Digest ApiKeys::Hash(std::string_view key) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

void ApiKeys::Add(std::string_view key) {
  if (key.empty()) throw InvalidArgument("an API key is empty (--api-key, --api-key-file)");
  const bool printable =
      std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 127; });
  if (!printable) {
    throw InvalidArgument(
        "an API key has a space, a control character or one beyond ASCII: no "
        "header could carry it");
  }
  digests_.push_back(Hash(key));
}

void ApiKeys::AddFile(const std::filesystem::path& path) {
  const std::string text = io::ReadTextFile(path);
  const size_t before = digests_.size();
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = Trim(std::string_view(text).substr(at, end - at));
    at = end + 1;
    if (line.empty() || line.front() == '#') continue;
    try {
      Add(line);
    } catch (const InvalidArgument& error) {
      throw FileError("{}: {}", path.string(), error.what());
    }
  }
  if (digests_.size() == before) throw FileError("{}: there is no API key in it", path.string());
}

std::optional<size_t> ApiKeys::Find(std::string_view authorization) const {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size()) return std::nullopt;
  for (size_t i = 0; i < kScheme.size(); ++i) {
    const char c = authorization[i];
    if ((c >= 'A' && c <= 'Z' ? c + 32 : c) != kScheme[i]) return std::nullopt;
  }
  const Digest given = Hash(Trim(authorization.substr(kScheme.size())));
  std::optional<size_t> found;
  for (size_t i = 0; i < digests_.size(); ++i) {
    if (CRYPTO_memcmp(given.data(), digests_[i].data(), given.size()) == 0) found = i;
  }
  return found;
}

}  // namespace litecache::server
