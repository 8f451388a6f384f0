// The server's parts, tested separately.
#include <gmock/gmock.h>

#include <chrono>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "expect_error.h"
#include "server/api/fields.h"
#include "server/api/messages.h"
#include "server/http/request_reader.h"
#include "server/metrics/exposition.h"
#include "server/worker_pool.h"
#include "test_seed.h"

namespace litecache::server {
namespace {

using litecache::testing::TestRandom;

HttpRequest Read(const std::string& text, std::mt19937_64& random) {
  RequestReader reader({});
  std::string pending;
  for (size_t at = 0; at < text.size() && reader.state() == RequestReader::State::kReading;) {
    const size_t count = std::min<size_t>(1 + random() % 40, text.size() - at);
    pending += text.substr(at, count);
    at += count;
    pending.erase(0, reader.Feed(pending));
  }
  EXPECT_EQ(reader.state(), RequestReader::State::kDone) << reader.error();
  return reader.Take();
}

TEST(RequestReader, TheSameHoweverTheBytesArrive) {
  auto random = TestRandom(11);
  std::string body;
  for (int i = 0; i < 1000; ++i) body += static_cast<char>(random());
  for (int i = 0; i < 50; ++i) {
    const HttpRequest request = Read(
        "POST /v1/models/a%2Fb%zz?x=%20 HTTP/1.1\r\nX-Name:  some value \r\nContent-Length: "
        "1000\r\n\r\n" +
            body,
        random);
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/v1/models/a/b%zz");
    EXPECT_EQ(request.query, "x=%20");
    EXPECT_EQ(request.Header("x-name"), "some value");
    EXPECT_EQ(request.body, body);
    EXPECT_TRUE(request.keep_alive);
  }
  const HttpRequest chunked = Read(
      "PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n"
      "2;x=y\r\nde\r\n0\r\n\r\n",
      random);
  EXPECT_EQ(chunked.body, "abcde");
  EXPECT_FALSE(chunked.keep_alive);
}

TEST(RequestReader, RefusesWhatCouldBeReadInTwoWays) {
  const auto status = [](const std::string& text) {
    RequestReader reader({});
    reader.Feed(text);
    return reader.state() == RequestReader::State::kFailed ? reader.error_status() : 0;
  };
  EXPECT_EQ(status("POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"),
            400);
  EXPECT_EQ(status("POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc"), 400);
  EXPECT_EQ(status("POST / HTTP/1.1\r\nContent-Length: -3\r\n\r\n"), 400);
  EXPECT_EQ(status("GET / HTTP/2.0\r\n\r\n"), 505);
  EXPECT_EQ(status("GET /\r\n\r\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\r\nBad Name: x\r\n\r\n"), 400);
}

TEST(Fields, NumbersAtTheEndOfTheirRange) {
  const Json object = Json::parse(
      R"({"big": 9223372036854775807, "huge": 18446744073709551615, "real": 1.5, "neg": -1})");
  Fields fields(object);
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(fields.Int("big", 0, kMax), kMax);
  EXPECT_THROW(fields.Int("huge", 0, 100), ApiError);
  EXPECT_THROW(fields.Int("real", 0, 100), ApiError);
  EXPECT_THROW(fields.Int("neg", 0, 100), ApiError);
  EXPECT_EQ(fields.Int("absent", 0, 100), std::nullopt);
  fields.Finish();
}

TEST(Messages, AreRewrittenForTemplates) {
  const Json messages = ReadMessages(Json::parse(R"([
    {"role": "developer", "content": "rules"},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "assistant", "content": null, "tool_calls": [
      {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "42"}])"));
  EXPECT_EQ(messages, Json::parse(R"([
    {"role": "system", "content": "rules"},
    {"role": "user", "content": "a\nb"},
    {"role": "assistant", "content": "", "tool_calls": [
      {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]},
    {"role": "tool", "content": "42", "tool_call_id": "c1"}])"));
}

// Tasks that wait behind another one; a client with many does not hold up the others.
TEST(WorkerPool, ClientsTakeTurns) {
  for (const bool heavy : {false, true}) {
    std::promise<void> begun, gate, ended;
    std::mutex mutex;
    std::string order;
    WorkerPool pool(1);
    pool.Post(1, heavy, [&] {
      begun.set_value();
      gate.get_future().wait();
    });
    begun.get_future().wait();
    const auto post = [&](uint64_t client, char name) {
      pool.Post(client, heavy, [&, name] {
        const std::lock_guard lock(mutex);
        order += name;
        if (order.size() == 6) ended.set_value();
      });
    };
    for (const char name : {'a', 'b', 'c'}) post(1, name);
    for (const char name : {'x', 'y'}) post(2, name);
    post(3, 'z');
    gate.set_value();
    ended.get_future().wait();
    EXPECT_EQ(order, "axzbyc");
  }
}

TEST(WorkerPool, HeavyTasksLeaveAThread) {
  std::promise<void> begun, light, ended;
  const std::shared_future<void> light_ran = light.get_future().share();
  std::mutex mutex;
  std::vector<std::string> order;
  const auto record = [&](const std::string& what) {
    const std::lock_guard lock(mutex);
    order.push_back(what);
    if (order.size() == 3) ended.set_value();
  };
  WorkerPool pool(2);
  // Without a thread of its own, the light task waits for a heavy one: 10 s.
  const auto heavy = [&] {
    const bool beside = light_ran.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
    record(beside ? "heavy" : "heavy, and nothing beside it");
  };
  pool.Post(1, true, [&] {
    begun.set_value();
    heavy();
  });
  begun.get_future().wait();
  pool.Post(1, true, heavy);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // time to start it, which is wrong
  pool.Post(1, false, [&] {
    record("light");
    light.set_value();
  });
  ended.get_future().wait();
  EXPECT_THAT(order, ::testing::ElementsAre("light", "heavy", "heavy"));
}

TEST(Exposition, HistogramsAddUp) {
  Histogram histogram({1, 2.5});
  for (const double value : {0.5, 1.0, 1.5, 99.0}) histogram.Observe(value);
  Exposition page;
  page.Add("x", histogram, "About x.");
  page.Family("y", "gauge", "About y.");
  page.Sample("y", {{"name", "a\"b\\c\nd"}}, 0.25);
  EXPECT_EQ(page.text(),
            "# HELP x About x.\n# TYPE x histogram\nx_bucket{le=\"1\"} 2\nx_bucket{le=\"2.5\"} 3\n"
            "x_bucket{le=\"+Inf\"} 4\nx_sum 102\nx_count 4\n"
            "# HELP y About y.\n# TYPE y gauge\ny{name=\"a\\\"b\\\\c\\nd\"} 0.25\n");
}

}  // namespace
}  // namespace litecache::server
