#include "server/api/model.h"

#include <array>

namespace litecache::server {

std::string TokenString(const tokenizer::Tokenizer& tokenizer, int32_t token) {
  const std::array<int32_t, 2> twice = {token, token};
  const std::string one = tokenizer.Decode({twice.data(), 1}, false);
  const std::string two = tokenizer.Decode(twice, false);
  return two.starts_with(one) ? two.substr(one.size()) : one;
}

}  // namespace litecache::server
