#include "server/api/anthropic_format.h"

#include <utility>

#include "server/api/answer_parser.h"

namespace litecache::server {
namespace {

// The content is a list of blocks: thoughts, text, and calls of tools.
class AnthropicFormat final : public AnswerFormat {
 public:
  AnthropicFormat(const ServedModel& model, const StreamOptions& stream, const ToolUse& tools,
                  int64_t prompt_tokens, std::vector<std::string> stops)
      : model_(model),
        stream_(stream),
        prompt_tokens_(prompt_tokens),
        stops_(std::move(stops)),
        parser_(tools.Parser()) {}

  void Begin(std::string* out) override {
    Json message = Message(Json::array(), UsageOf({.prompt_tokens = prompt_tokens_}));
    Emit("message_start", {{"message", std::move(message)}}, out);
  }

  void Delta(int, const Chunk& chunk, std::string* out) override {
    for (const ToolEvent& event : parser_.Take(chunk)) Take(event, out);
    if (chunk.finish == FinishReason::kNone) return;
    if (chunk.finish == FinishReason::kLength) {
      stop_reason_ = "max_tokens";
    } else if (chunk.stop >= 0) {
      stop_reason_ = "stop_sequence";
      stop_sequence_ = stops_[static_cast<size_t>(chunk.stop)];
    } else {
      stop_reason_ = called_ ? "tool_use" : "end_turn";
    }
  }

  void OnProgress(const Progress& progress, std::string* out) override {
    Emit("ping", {{"prompt_progress", ProgressJson(progress)}}, out);
  }

  void End(const Usage& usage, std::string* out) override {
    Close(out);
    Emit("message_delta",
         {{"delta", {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}}},
          {"usage", UsageOf(usage)}},
         out);
    Emit("message_stop", Json::object(), out);
  }

  void Failed(const ApiError& error, std::string* out) override {
    *out += "event: error\ndata: " + error.Body(ErrorShape::kAnthropic) + "\n\n";
  }

  Json Whole(const Usage& usage) override {
    Json content = Json::array();
    for (const Block& block : blocks_) content.push_back(BlockJson(block));
    return Message(std::move(content), UsageOf(usage));
  }

 private:
  struct Block {
    enum Kind { kText, kThinking, kCall } kind = kText;
    std::string id, name;  // of a call
    std::string text;      // or the call's arguments
  };

  static Json UsageOf(const Usage& usage) {
    return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", usage.cached_tokens},
            {"output_tokens", usage.generated_tokens}};
  }

  // A call's arguments, which a model that is not made to may write wrongly.
  static Json Input(const std::string& arguments) {
    try {
      auto limits = io::JsonLimits::OfRequest();
      Json input = io::ParseLimitedJson<Json>(arguments, &limits);
      if (input.is_object()) return input;
    } catch (const io::JsonError&) {
    }
    return {{"invalid_json", arguments}};
  }

  static Json BlockJson(const Block& block) {
    if (block.kind == Block::kText) return {{"type", "text"}, {"text", block.text}};
    // Signatures are Anthropic's proof that thoughts are their own.
    if (block.kind == Block::kThinking) {
      return {{"type", "thinking"}, {"thinking", block.text}, {"signature", ""}};
    }
    return {{"type", "tool_use"},
            {"id", block.id},
            {"name", block.name},
            {"input", block.text.empty() ? Json::object() : Input(block.text)}};
  }

  Json Message(Json content, Json usage) const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", model_.name()},
            {"content", std::move(content)},
            {"stop_reason", stop_reason_},
            {"stop_sequence", stop_sequence_},
            {"usage", std::move(usage)}};
  }

  void Take(const ToolEvent& event, std::string* out) {
    if (event.kind == ToolEvent::kBegin) {
      called_ = true;
      return Open({Block::kCall, NewId("toolu_"), event.text, ""}, out);
    }
    const auto kind = event.kind == ToolEvent::kText        ? Block::kText
                      : event.kind == ToolEvent::kReasoning ? Block::kThinking
                                                            : Block::kCall;
    if (blocks_.empty() || blocks_.back().kind != kind) Open({.kind = kind}, out);
    blocks_.back().text += event.text;
    Json delta;
    if (kind == Block::kText) delta = {{"type", "text_delta"}, {"text", event.text}};
    if (kind == Block::kThinking) delta = {{"type", "thinking_delta"}, {"thinking", event.text}};
    if (kind == Block::kCall) {
      delta = {{"type", "input_json_delta"}, {"partial_json", event.text}};
    }
    Emit("content_block_delta", {{"index", blocks_.size() - 1}, {"delta", std::move(delta)}}, out);
  }

  void Open(Block block, std::string* out) {
    Close(out);
    blocks_.push_back(std::move(block));
    Emit("content_block_start",
         {{"index", blocks_.size() - 1}, {"content_block", BlockJson(blocks_.back())}}, out);
  }

  // The last block, if there is one.
  void Close(std::string* out) const {
    if (!blocks_.empty()) Emit("content_block_stop", {{"index", blocks_.size() - 1}}, out);
  }

  void Emit(const char* type, const Json& fields, std::string* out) const {
    if (!stream_.stream) return;
    Json event = {{"type", type}};
    event.update(fields);
    *out += fmt::format("event: {}\n", type);
    AppendEvent(event, out);
  }

  const ServedModel& model_;
  const StreamOptions stream_;
  const int64_t prompt_tokens_;
  const std::vector<std::string> stops_;
  const std::string id_ = NewId("msg_");
  AnswerParser parser_;
  std::vector<Block> blocks_;
  bool called_ = false;
  Json stop_reason_;
  Json stop_sequence_;
};

}  // namespace

std::unique_ptr<AnswerFormat> AnthropicAnswer(const ServedModel& model, const StreamOptions& stream,
                                              const ToolUse& tools, int64_t prompt_tokens,
                                              std::vector<std::string> stops) {
  return std::make_unique<AnthropicFormat>(model, stream, tools, prompt_tokens, std::move(stops));
}

}  // namespace litecache::server
