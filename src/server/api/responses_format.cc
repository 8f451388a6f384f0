#include "server/api/responses_format.h"

#include <ctime>
#include <set>
#include <utility>
#include <vector>

#include "server/api/answer_parser.h"

namespace litecache::server {
namespace {

// Events of a stream are named and numbered. The output is a list of items: reasoning, messages and
// calls.
class ResponsesFormat final : public AnswerFormat {
 public:
  ResponsesFormat(const ServedModel& model, const StreamOptions& stream, Json echo,
                  const ToolUse& tools)
      : model_(model),
        stream_(stream),
        echo_(std::move(echo)),
        custom_(tools.custom),
        parser_(tools.Parser()) {}

  void Begin(std::string* out) override {
    Emit("response.created", {{"response", State("in_progress", Json::array(), nullptr)}}, out);
    Emit("response.in_progress", {{"response", State("in_progress", Json::array(), nullptr)}}, out);
    // Otherwise the answer may begin with thoughts or a call.
    if (!parser_.splits()) Open(Item::kMessage, "", out);
  }

  void Delta(int, const Chunk& chunk, std::string* out) override {
    if (chunk.finish != FinishReason::kNone) finish_ = chunk.finish;
    for (const ToolEvent& event : parser_.Take(chunk)) Take(event, out);
  }

  void OnProgress(const Progress& progress, std::string* out) override {
    Emit("response.prompt_progress", {{"prompt_progress", ProgressJson(progress)}}, out);
  }

  void End(const Usage& usage, std::string* out) override {
    if (items_.empty()) Open(Item::kMessage, "", out);
    Close(LastStatus(), out);
    const Json result = Whole(usage);
    Emit(complete() ? "response.completed" : "response.incomplete", {{"response", result}}, out);
  }

  void Failed(const ApiError& error, std::string* out) override {
    Json response = State("failed", Json::array(), nullptr);
    response["error"] = {{"code", "server_error"}, {"message", error.what()}};
    Emit("response.failed", {{"response", std::move(response)}}, out);
  }

  Json Whole(const Usage& usage) override {
    if (items_.empty()) items_.push_back({Item::kMessage, NewId("msg_"), "", "", ""});
    Json output = Json::array();
    for (const Item& item : items_) {
      output.push_back(ItemJson(item, &item != &items_.back() ? "completed" : LastStatus()));
    }
    return State(complete() ? "completed" : "incomplete", std::move(output),
                 {{"input_tokens", usage.prompt_tokens},
                  // Types generated from OpenAI's specification require both; nothing is charged
                  // here for what is kept.
                  {"input_tokens_details",
                   {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
                  {"output_tokens", usage.generated_tokens},
                  {"output_tokens_details", {{"reasoning_tokens", parser_.reasoning_tokens()}}},
                  {"total_tokens", usage.prompt_tokens + usage.generated_tokens}});
  }

 private:
  struct Item {
    // kCustom: a call of a tool that takes a text; the model writes it as the argument "input".
    enum Kind { kMessage, kReasoning, kCall, kCustom } kind = kMessage;
    std::string id;
    std::string call_id;
    std::string name;
    std::string text;  // of the message or the thoughts, or arguments of the call
    bool call() const { return kind == kCall || kind == kCustom; }
  };

  bool complete() const { return finish_ != FinishReason::kLength; }
  const char* LastStatus() const { return complete() ? "completed" : "incomplete"; }

  void Take(const ToolEvent& event, std::string* out) {
    if (event.kind == ToolEvent::kBegin) {
      Close("completed", out);
      return Open(custom_.contains(event.text) ? Item::kCustom : Item::kCall, event.text, out);
    }
    if (event.kind != ToolEvent::kArguments) {
      const auto kind = event.kind == ToolEvent::kText ? Item::kMessage : Item::kReasoning;
      if (items_.empty() || items_.back().kind != kind) {
        Close("completed", out);
        Open(kind, "", out);
      }
    }
    Item& item = items_.back();
    item.text += event.text;
    if (!stream_.stream) return;
    if (item.kind == Item::kCall) {
      Emit("response.function_call_arguments.delta", Place({{"delta", event.text}}), out);
    } else if (item.kind == Item::kReasoning) {
      Emit("response.reasoning_text.delta", PlacePart({{"delta", event.text}}), out);
    } else if (item.kind == Item::kMessage) {
      Emit("response.output_text.delta",
           PlacePart({{"delta", event.text}, {"logprobs", Json::array()}}), out);
    }
  }

  void Open(Item::Kind kind, const std::string& name, std::string* out) {
    const char* const prefixes[] = {"msg_", "rs_", "fc_", "ctc_"};
    items_.push_back({kind, NewId(prefixes[kind]), "", name, ""});
    const bool call = items_.back().call();
    if (call) items_.back().call_id = NewId("call_");
    if (!stream_.stream) return;
    Json item = ItemJson(items_.back(), "in_progress");
    if (!call) item["content"] = Json::array();
    Emit("response.output_item.added",
         {{"output_index", items_.size() - 1}, {"item", std::move(item)}}, out);
    if (!call) Emit("response.content_part.added", PlacePart({{"part", Part(kind, "")}}), out);
  }

  // Closes the last item, if there is one. One that another follows is complete, also where the
  // end of the answer cuts that other one.
  void Close(const char* status, std::string* out) {
    if (items_.empty() || !stream_.stream) return;
    const Item& item = items_.back();
    if (item.kind == Item::kCustom) {
      const std::string input = CustomInput(item.text);
      Emit("response.custom_tool_call_input.delta", Place({{"delta", input}}), out);
      Emit("response.custom_tool_call_input.done", Place({{"input", input}}), out);
    } else if (item.kind == Item::kCall) {
      Emit("response.function_call_arguments.done",
           Place({{"name", item.name}, {"arguments", item.text}}), out);
    } else {
      if (item.kind == Item::kReasoning) {
        Emit("response.reasoning_text.done", PlacePart({{"text", item.text}}), out);
      } else {
        Emit("response.output_text.done",
             PlacePart({{"text", item.text}, {"logprobs", Json::array()}}), out);
      }
      Emit("response.content_part.done", PlacePart({{"part", Part(item.kind, item.text)}}), out);
    }
    Emit("response.output_item.done",
         {{"output_index", items_.size() - 1}, {"item", ItemJson(item, status)}}, out);
  }

  static Json Part(Item::Kind kind, const std::string& text) {
    if (kind == Item::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", Json::array()},
            {"logprobs", Json::array()}};
  }

  // The text in {"input": TEXT}; what is anything else is the text itself.
  static std::string CustomInput(const std::string& arguments) {
    try {
      auto limits = io::JsonLimits::OfRequest();
      const Json object = io::ParseLimitedJson<Json>(arguments, &limits);
      if (object.is_object() && object.contains("input") && object["input"].is_string()) {
        return object["input"];
      }
    } catch (const io::JsonError&) {
    }
    return arguments;
  }

  static Json ItemJson(const Item& item, const char* status) {
    if (item.kind == Item::kCustom) {
      return {{"id", item.id},     {"type", "custom_tool_call"},
              {"status", status},  {"call_id", item.call_id},
              {"name", item.name}, {"input", CustomInput(item.text)}};
    }
    if (item.kind == Item::kCall) {
      return {{"id", item.id},           {"type", "function_call"}, {"status", status},
              {"call_id", item.call_id}, {"name", item.name},       {"arguments", item.text}};
    }
    Json content = Json::array({Part(item.kind, item.text)});
    if (item.kind == Item::kReasoning) {
      return {{"id", item.id},
              {"type", "reasoning"},
              {"status", status},
              {"summary", Json::array()},
              {"content", std::move(content)}};
    }
    return {{"id", item.id},
            {"type", "message"},
            {"status", status},
            {"role", "assistant"},
            {"content", std::move(content)}};
  }

  // Adds the position of the last item.
  Json Place(const Json& fields) const {
    Json event = {{"item_id", items_.back().id}, {"output_index", items_.size() - 1}};
    event.update(fields);
    return event;
  }
  Json PlacePart(const Json& fields) const {
    Json event = Place({{"content_index", 0}});
    event.update(fields);
    return event;
  }

  // The response object.
  Json State(const char* status, Json output, Json usage) const {
    Json result = {{"id", id_},
                   {"object", "response"},
                   {"created_at", created_},
                   {"status", status},
                   {"background", false},
                   {"error", nullptr},
                   {"incomplete_details", nullptr},
                   {"model", model_.name()},
                   {"output", std::move(output)},
                   {"previous_response_id", nullptr},
                   {"store", false},
                   {"usage", std::move(usage)}};
    if (std::string_view(status) == "incomplete") {
      result["incomplete_details"] = {{"reason", "max_output_tokens"}};
    }
    result.update(echo_);
    return result;
  }

  void Emit(const char* type, const Json& fields, std::string* out) {
    Json event = {{"type", type}, {"sequence_number", sequence_++}};
    event.update(fields);
    *out += fmt::format("event: {}\n", type);
    AppendEvent(event, out);
  }

  const ServedModel& model_;
  const StreamOptions stream_;
  const Json echo_;  // fields of the request that the response repeats
  const std::string id_ = NewId("resp_");
  const std::time_t created_ = std::time(nullptr);
  int64_t sequence_ = 0;
  const std::set<std::string> custom_;  // tools that take a text
  AnswerParser parser_;
  std::vector<Item> items_;
  FinishReason finish_ = FinishReason::kNone;
};

}  // namespace

std::unique_ptr<AnswerFormat> ResponsesAnswer(const ServedModel& model, const StreamOptions& stream,
                                              Json echo, const ToolUse& tools) {
  return std::make_unique<ResponsesFormat>(model, stream, std::move(echo), tools);
}

}  // namespace litecache::server
