#include "server/api/endpoints.h"

#include "server/api/information.h"

namespace litecache::server {

std::span<const JsonEndpoint> JsonEndpoints() {
  static constexpr JsonEndpoint kEndpoints[] = {
      {.path = "/v1/chat/completions", .read_job = ReadChat},
      {.path = "/v1/completions", .read_job = ReadCompletion},
      {.path = "/v1/responses", .read_job = ReadResponses},
      {.path = "/v1/messages", .read_job = ReadAnthropic},
      {.path = "/infill", .read_job = ReadInfill},
      {.path = "/v1/messages/count_tokens", .compute = CountTokensJson},
      {.path = "/tokenize", .compute = TokenizeJson},
      {.path = "/detokenize", .compute = DetokenizeJson},
      {.path = "/apply-template", .compute = ApplyTemplateJson},
  };
  return kEndpoints;
}

}  // namespace litecache::server
