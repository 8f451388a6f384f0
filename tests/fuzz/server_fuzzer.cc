// Arbitrary bytes from a client: as HTTP, in pieces of sizes given by the bytes, and as the JSON
// body of every endpoint. Each must end in a request that is valid for the engine, or in an error
// attributed to the client; an answer's JSON can always be written. And as what a model says.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/config.h"
#include "server/api/answer.h"
#include "server/api/endpoints.h"
#include "server/api/error.h"
#include "server/api/gemma_calls.h"
#include "server/api/harmony.h"
#include "server/api/json_calls.h"
#include "server/api/python_calls.h"
#include "server/api/xml_calls.h"
#include "server/http/request_reader.h"

namespace {

using namespace litecache;          // NOLINT: a program of one file
using namespace litecache::server;  // NOLINT

constexpr const char* kTokenizer = R"({
  "added_tokens": [
    {"id": 0, "content": "<s>", "special": true, "single_word": false, "lstrip": false,
     "rstrip": false, "normalized": false},
    {"id": 1, "content": "</s>", "special": true, "single_word": false, "lstrip": false,
     "rstrip": false, "normalized": false},
    {"id": 9, "content": "<|fim_prefix|>", "special": true, "single_word": false,
     "lstrip": false, "rstrip": false, "normalized": false},
    {"id": 10, "content": "<|fim_suffix|>", "special": true, "single_word": false,
     "lstrip": false, "rstrip": false, "normalized": false},
    {"id": 11, "content": "<|fim_middle|>", "special": true, "single_word": false,
     "lstrip": false, "rstrip": false, "normalized": false},
    {"id": 12, "content": "<|file_sep|>", "special": true, "single_word": false,
     "lstrip": false, "rstrip": false, "normalized": false}],
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
  "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "merges": ["a b"],
    "vocab": {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "c": 4, "Ġ": 5, "Ã": 6, "©": 7, "ab": 8,
      "<|fim_prefix|>": 9, "<|fim_suffix|>": 10, "<|fim_middle|>": 11, "<|file_sep|>": 12}}})";

// Has the limits that requests are checked against, but cannot generate.
class NoEngine final : public Engine {
 public:
  NoEngine() {
    config_.vocab = 13;
    plan_.largest_context = plan_.context_limit = 512;
  }
  const model::ModelConfig& config() const override { return config_; }
  const tokenizer::Tokenizer& tokenizer() const override { return *tokenizer_; }
  const std::filesystem::path& directory() const override { return directory_; }
  const MemoryPlan& memory_plan() const override { return plan_; }
  const std::vector<std::string>& kv_notes() const override { return notes_; }
  EngineStats Stats() const override { return {}; }
  const SamplingParams& default_sampling() const override { return sampling_; }
  std::shared_ptr<RequestHandle> Submit(Request) override { throw Error("no engine"); }
  ScoreResult Score(const ScoreRequest&, const std::function<void(int64_t, int64_t)>&) override {
    throw Error("no engine");
  }
  std::string Description() const override { return "none"; }

 private:
  model::ModelConfig config_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_ =
      tokenizer::Tokenizer::FromJson(kTokenizer);
  std::filesystem::path directory_;
  MemoryPlan plan_;
  std::vector<std::string> notes_;
  SamplingParams sampling_;
};

const ServedModel& Model() {
  static const auto model = [] {
    auto made = std::make_unique<ServedModel>();
    made->engine = std::make_unique<NoEngine>();
    made->grammars = std::make_unique<grammar::GrammarCache>(made->tokenizer());
    made->names = {"m"};
    made->chat.emplace(made->tokenizer(),
                       tokenizer::ChatTemplate("{% for m in messages %}<s>{{ m.role }}{{ m.content "
                                               "}}{% endfor %}{% if add_generation_prompt %}</s>{% "
                                               "endif %}"));
    made->limits.trust_chat_template = false;
    return made;
  }();
  return *model;
}

template <typename Body>
void Try(const Body& body) {
  try {
    body();
  } catch (...) {
    const ApiError error = ToApiError(std::current_exception());
    LC_CHECK(error.status() < 500, "{}", error.what());
    LC_CHECK(Json::accept(error.Body()));
  }
}

void Answer(GenerationJob job) {
  LC_CHECK(!job.requests.empty());
  int choices = 0;
  for (const Request& request : job.requests) {
    LC_CHECK(request.n >= 1 && request.max_tokens >= 1);
    request.sampling.Validate();
    choices += request.n;
  }
  std::string out;
  job.format->Begin(&out);
  for (int i = 0; i < choices; ++i) {
    Chunk chunk;
    chunk.tokens = {2};
    chunk.text = "a";
    if (job.requests[0].logprobs >= 0) chunk.logprob = TokenLogprob{2, -1.0f};
    job.format->Delta(i, chunk, &out);
    chunk.finish = FinishReason::kStop;
    job.format->Delta(i, chunk, &out);
  }
  if (job.stream.stream) {
    job.format->End({1, 0, 2}, &out);
    for (size_t at = 0; (at = out.find("data: {", at)) != std::string::npos;) {
      const size_t end = out.find("\n\n", at);
      LC_CHECK(Json::accept(out.substr(at + 6, end - at - 6)));
      at = end;
    }
  } else {
    LC_CHECK(Json::accept(Dump(job.format->Whole({1, 0, 2}))));
  }
}

void TryBody(std::string_view body) {
  for (const JsonEndpoint& endpoint : JsonEndpoints()) {
    Try([&] {
      if (endpoint.read_job != nullptr) {
        Answer(endpoint.read_job(ParseBody(body), Model()));
      } else {
        LC_CHECK(Json::accept(Dump(endpoint.compute(ParseBody(body), Model()))));
      }
    });
  }
}

// As what a model says: the same in one piece and in pieces of sizes given by the bytes.
template <typename MakeParser>
void TryAnswer(std::string_view bytes, const MakeParser& make_parser) {
  const auto parse = [&](bool pieces) {
    auto parser = make_parser();
    std::vector<ToolEvent> events;
    for (size_t at = 0; at < bytes.size();) {
      const size_t count = pieces ? 1 + static_cast<uint8_t>(bytes[at]) % 7 : bytes.size();
      parser.Add(bytes.substr(at, count), &events);
      at += count;
    }
    parser.Finish(&events);
    std::vector<ToolEvent> joined;
    for (const ToolEvent& event : events) {
      LC_CHECK(!event.text.empty());
      const bool goes_on = !joined.empty() && joined.back().kind == event.kind;
      if (goes_on && event.kind != ToolEvent::kBegin) {
        joined.back().text += event.text;
      } else {
        joined.push_back(event);
      }
    }
    return joined;
  };
  const auto whole = parse(false), parts = parse(true);
  LC_CHECK(std::ranges::equal(whole, parts, [](const ToolEvent& a, const ToolEvent& b) {
    return a.kind == b.kind && a.text == b.text;
  }));
}

std::shared_ptr<const CallTypes> XmlTypes() {
  static const auto types = std::make_shared<const CallTypes>(
      CallTypes{{"f", {{"a", {"integer"}}, {"b", {"string", "null"}}, {"c", {"string"}}}}});
  return types;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  TryBody(bytes);
  TryAnswer(bytes, [] { return HarmonyAnswer(kHarmonyPrompt, std::set<std::string>{"f"}, 2); });
  for (int i = 0; i <= static_cast<int>(ToolFormat::kHarmony); ++i) {
    const auto format = static_cast<ToolFormat>(i);
    if (const CallTags* tags = CallTagsOf(format)) {
      TryAnswer(bytes, [&] { return XmlCallParser(*tags, XmlTypes(), 2); });
    }
    if (const JsonTags* tags = JsonTagsOf(format)) {
      TryAnswer(bytes, [&] { return JsonCallParser(*tags, {"f"}, 2); });
    }
  }
  TryAnswer(bytes, [] { return GemmaCallParser(2); });
  TryAnswer(bytes, [] { return PythonCallParser(2); });
  for (const char* chat_template :
       {"<think>", "<think><answer>", "<|START_THINKING|><|START_RESPONSE|>", "<|inner_prefix|>",
        "<|channel>thought"}) {
    for (const Thinking thinking :
         {Thinking::kNone, Thinking::kMaybe, Thinking::kOpen, Thinking::kSaid}) {
      TryAnswer(bytes, [&] { return ThoughtSplitter(thinking, ThinkTagsOf(chat_template)); });
    }
  }
  RequestReader reader({4096, 65536});
  std::string pending;
  for (size_t at = 0; at < size && reader.state() == RequestReader::State::kReading;) {
    const size_t count = std::min<size_t>(1 + data[at] % 61, size - at);
    pending += bytes.substr(at, count);
    at += count;
    pending.erase(0, reader.Feed(pending));
    (void)reader.WantsContinue();
    LC_CHECK(pending.size() <= 4096 + 61 || reader.state() != RequestReader::State::kReading);
  }
  if (reader.state() == RequestReader::State::kFailed) LC_CHECK(reader.error_status() >= 400);
  if (reader.state() == RequestReader::State::kDone) {
    const HttpRequest request = reader.Take();
    LC_CHECK(request.body.size() <= 65536);
    TryBody(request.body);
  }
  return 0;
}
