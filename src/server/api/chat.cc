// /v1/chat/completions
#include "server/api/chat.h"

#include <optional>
#include <utility>

#include "server/api/chat_prompt.h"
#include "server/api/choices_format.h"
#include "server/api/logprobs.h"
#include "server/api/response_format.h"
#include "server/api/tools.h"

namespace litecache::server {
namespace {

class ChatFormat final : public ChoicesFormat {
 public:
  ChatFormat(const ServedModel& model, const GenerationJob& job, const ToolUse& tools)
      : ChoicesFormat(model, job,
                      {.id = "chatcmpl-",
                       .object = "chat.completion",
                       .event = "chat.completion.chunk",
                       .content = "message",
                       .delta = "delta",
                       .prompt_in_choice = false}),
        logprobs_(job.requests.front().logprobs >= 0),
        thinks_(tools.thinking != Thinking::kNone) {
    for (size_t i = 0; i < samples(); ++i) choices_.emplace_back(tools.Parser());
  }

  void Begin(std::string* out) override {
    for (size_t i = 0; i < choices_.size(); ++i) {
      Append(i, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr, out);
    }
  }

  void Delta(int index, const Chunk& chunk, std::string* out) override {
    Said& choice = choices_[static_cast<size_t>(index)];
    Note(static_cast<size_t>(index), chunk);
    Json logprobs;
    if (logprobs_ && chunk.logprob) {
      Json entry = ChatLogprob(model().tokenizer(), chunk);
      if (streams()) {
        logprobs = {{"content", Json::array({std::move(entry)})}, {"refusal", nullptr}};
      } else {
        choice.logprobs.push_back(std::move(entry));
      }
    }
    const bool last = chunk.finish != FinishReason::kNone;
    if (last) choice.finish = chunk.finish;
    for (const ToolEvent& event : choice.parser.Take(chunk)) {
      Json delta = choice.Take(event);
      if (streams()) {
        Append(static_cast<size_t>(index), std::move(delta), std::exchange(logprobs, nullptr),
               nullptr, out);
      }
    }
    if (streams() && !logprobs.is_null()) {
      Append(static_cast<size_t>(index), {{"content", ""}}, std::move(logprobs), nullptr, out);
    }
    if (streams() && last) {
      Append(static_cast<size_t>(index), Json::object(), nullptr, choice.Finish(), out);
    }
  }

  Json Whole(const Usage& usage) override {
    Json choices = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      Said& choice = choices_[i];
      Json logprobs;
      if (logprobs_) logprobs = {{"content", std::move(choice.logprobs)}, {"refusal", nullptr}};
      Json message = {
          {"role", "assistant"}, {"content", std::move(choice.text)}, {"refusal", nullptr}};
      if (!choice.reasoning.empty()) message["reasoning_content"] = std::move(choice.reasoning);
      if (!choice.calls.empty()) {
        if (message["content"] == "") message["content"] = nullptr;
        message["tool_calls"] = choice.calls;
      }
      choices.push_back(Choice(i, std::move(message), std::move(logprobs), choice.Finish()));
    }
    return Answer(std::move(choices), usage);
  }

 private:
  int64_t ReasoningTokens() const override {
    if (!thinks_) return -1;
    int64_t tokens = 0;
    for (const Said& choice : choices_) tokens += choice.parser.reasoning_tokens();
    return tokens;
  }

  struct Said {
    explicit Said(AnswerParser parts) : parser(std::move(parts)) {}
    AnswerParser parser;
    std::string reasoning;
    std::string text;
    Json logprobs = Json::array();
    FinishReason finish = FinishReason::kNone;
    Json calls = Json::array();

    // Adds text or a tool call; returns the delta that a stream sends for it.
    Json Take(const ToolEvent& event) {
      if (event.kind == ToolEvent::kText) {
        text += event.text;
        return {{"content", event.text}};
      }
      if (event.kind == ToolEvent::kReasoning) {
        reasoning += event.text;
        return {{"reasoning_content", event.text}};
      }
      if (event.kind == ToolEvent::kBegin) {
        calls.push_back({{"id", NewId("call_")},
                         {"type", "function"},
                         {"function", {{"name", event.text}, {"arguments", ""}}}});
        Json call = {{"index", calls.size() - 1}};
        call.update(calls.back());
        return {{"tool_calls", Json::array({std::move(call)})}};
      }
      auto& arguments = calls.back()["function"]["arguments"].get_ref<std::string&>();
      arguments += event.text;
      return {{"tool_calls", Json::array({Json{{"index", calls.size() - 1},
                                               {"function", {{"arguments", event.text}}}}})}};
    }
    const char* Finish() const {
      return finish == FinishReason::kStop && !calls.empty() ? "tool_calls" : FinishName(finish);
    }
  };

  const bool logprobs_;
  const bool thinks_;
  std::vector<Said> choices_;
};

int ReadLogprobs(Fields& fields) {
  const bool logprobs = fields.Bool("logprobs").value_or(false);
  const auto top = fields.Int("top_logprobs", 0, 20);
  if (top && *top > 0 && !logprobs) {
    fields.Fail("top_logprobs", "it requires 'logprobs': true");
  }
  return logprobs ? static_cast<int>(top.value_or(0)) : -1;
}

void RefuseUnsupportedChat(Fields& fields) {
  fields.RefuseUnless("modalities", {Json::array({"text"})}, "this server generates only text");
  fields.IgnoreUnless("store", {false}, "answers are not stored");
  fields.RefuseUnless("echo", {false});
  fields.RefuseUnless("add_special_tokens", {false}, "the chat template adds them");
  for (const char* name : {"prediction", "verbosity"}) fields.IgnoreUnless(name, {});
  for (const char* name : {"functions", "function_call"}) fields.Refuse(name, "send 'tools'");
  for (const char* name : {"audio", "web_search_options"}) fields.Refuse(name);
}

}  // namespace

ChatJob ReadChatFields(Fields& fields, const ServedModel& model) {
  ReadModelField(fields, model);
  ChatJob chat;
  GenerationJob& job = chat.job;
  Request request = ReadGenerationFields(fields, model);
  request.logprobs = ReadLogprobs(fields);
  job.stream = ReadStreamFields(fields);
  ReadReportFields(fields, &job.stream, &request);
  auto max_tokens = ReadMaxTokens(fields, "max_completion_tokens", model);
  const auto old_name = ReadMaxTokens(fields, "max_tokens", model);
  if (!max_tokens) max_tokens = old_name;
  chat.tools = ReadTools(fields, false);
  // It is about the answer's text, and a required call is all of the answer.
  Request unused;
  ReadResponseFormat(fields, model, chat.tools.required() ? &unused : &request);
  RefuseUnsupportedChat(fields);
  ChatPromptFields prompt = ReadChatPrompt(fields, model);
  prompt.most_tokens = ReadTruncation(fields, model, max_tokens);
  fields.Finish();
  ApplyTools(model, &prompt, &chat.tools, &request);
  request.prompt = EncodeChatPrompt(prompt, model);
  ApplyThinking(model, prompt, &chat.tools, &request);
  job.requests.push_back(std::move(request));
  SetMaxTokens(max_tokens, model.limits.default_max_tokens, model, &job);
  return chat;
}

GenerationJob ReadChat(const Json& body, const ServedModel& model) {
  Fields fields(body);
  auto [job, tools] = ReadChatFields(fields, model);
  job.format = std::make_unique<ChatFormat>(model, job, tools);
  return std::move(job);
}

}  // namespace litecache::server
