// HTTP as clients speak it: pieces, pipelines, 100-continue, HTTP/1.0.
#include <gmock/gmock.h>

#include "server/test_server.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;

TEST(Protocol, ARequestByteByByteIsARequest) {
  TestServer server;
  Client client(server.port());
  const std::string text =
      RequestText("POST", "/v1/completions", Json{{"prompt", "the"}, {"max_tokens", 2}}.dump(),
                  {"Connection: close"});
  for (const char c : text) client.Send({&c, 1});
  EXPECT_EQ(ParseReply(client.ReceiveAll()).status, 200);
}

TEST(Protocol, RequestsOnOneConnectionAreAnsweredInTheirOrder) {
  TestServer server;
  Client client(server.port());
  // Requests sent ahead of the answers.
  client.Send(RequestText("GET", "/v1/models") + RequestText("GET", "/nowhere") +
              RequestText("POST", "/v1/completions",
                          Json{{"prompt", "x"}, {"max_tokens", 3}, {"stream", true}}.dump()) +
              RequestText("GET", "/health", "", {"Connection: close"}));
  const std::string all = client.ReceiveAll();
  const size_t models = all.find("\"tiny\""), missing = all.find(" 404 "),
               done = all.find("[DONE]"), health = all.find("{\"status\":\"ok\"}");
  EXPECT_LT(models, missing);
  EXPECT_LT(missing, done);
  EXPECT_LT(done, health);
  EXPECT_NE(health, std::string::npos);
}

TEST(Protocol, ContinueIsSaidWhenAsked) {
  TestServer server;
  Client client(server.port());
  const std::string body = Json{{"prompt", "x"}, {"max_tokens", 1}}.dump();
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(client.ReceiveUntil("\r\n\r\n"), HasSubstr("100 Continue"));
  client.Send(body);
  EXPECT_THAT(client.ReceiveAll(), HasSubstr("200 OK"));
}

TEST(Protocol, OldClientsGetStreamsWithoutChunks) {
  TestServer server;
  Client client(server.port());
  const std::string body = Json{{"prompt", "x"}, {"max_tokens", 2}, {"stream", true}}.dump();
  client.Send(
      "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  const std::string answer = client.ReceiveAll();
  EXPECT_THAT(answer, ::testing::Not(HasSubstr("chunked")));
  EXPECT_THAT(answer, ::testing::EndsWith("data: [DONE]\n\n"));
}

}  // namespace
}  // namespace litecache::testing
