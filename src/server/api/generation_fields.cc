#include "server/api/generation_fields.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/join.h"
#include "server/api/answer.h"
#include "server/api/response_format.h"

namespace litecache::server {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
constexpr size_t kMaxStops = 64;
constexpr size_t kMaxBadWords = 256;

void ReadLogitBias(Fields& fields, SamplingParams* params) {
  const Json* bias = fields.Object("logit_bias");
  if (bias == nullptr) return;
  for (const auto& [key, value] : bias->items()) {
    int32_t token = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0) {
      throw BadRequest("logit_bias", "'logit_bias': '{}' is not a token id", key);
    }
    if (!value.is_number()) {
      throw BadRequest("logit_bias", "'logit_bias': {}, the bias of token {}, is not a number",
                       Excerpt(value), token);
    }
    params->logit_bias.emplace_back(token, value.get<float>());
  }
}

std::vector<std::string> ReadStops(Fields& fields) {
  const Json* stop = fields.Find("stop");
  if (stop == nullptr) return {};
  if (stop->is_string()) return {stop->get<std::string>()};
  if (!stop->is_array()) fields.Fail("stop", "a string or an array of strings is expected");
  if (stop->size() > kMaxStops) {
    fields.Fail("stop", fmt::format("at most {} strings are allowed", kMaxStops));
  }
  std::vector<std::string> stops;
  for (const Json& text : *stop) {
    if (!text.is_string()) fields.Fail("stop", "a string or an array of strings is expected");
    stops.push_back(text.get<std::string>());
  }
  return stops;
}

// Fields of llama.cpp's server and others that would change which tokens are sampled.
void RefuseOtherSamplers(Fields& fields) {
  fields.RefuseUnless("repeat_penalty", {1}, "send 'repetition_penalty'");
  fields.RefuseUnless("n_predict", {-1}, "send 'max_tokens'");
  fields.RefuseUnless("n_cmpl", {1}, "send 'n'");
  fields.RefuseUnless("n_probs", {0}, "send 'logprobs'");
  fields.RefuseUnless("return_tokens", {false}, "send 'return_token_ids'");
  fields.RefuseUnless("lora", {Json::array()});
  fields.RefuseUnless("image_data", {Json::array()}, "this server accepts only text");
  for (const char* name :
       {"mirostat", "mirostat_mode", "dynatemp_range", "dry_multiplier", "xtc_probability",
        "no_repeat_ngram_size", "penalty_alpha", "top_a", "smoothing_factor", "epsilon_cutoff",
        "eta_cutoff", "n_indent", "min_keep", "t_max_predict_ms"}) {
    fields.RefuseUnless(name, {0});
  }
  for (const char* name : {"typical_p", "tfs_z", "guidance_scale"}) fields.RefuseUnless(name, {1});
  fields.RefuseUnless("top_n_sigma", {0, -1});
  for (const char* name : {"watermarking", "return_tokens_as_token_ids", "post_sampling_probs"}) {
    fields.RefuseUnless(name, {false});
  }
  for (const char* name :
       {"samplers", "structural_tag", "thinking_token_budget", "logprob_token_ids",
        "repetition_detection", "truncation_side", "mm_processor_kwargs", "negative_prompt",
        "prompt_embeds", "response_fields"}) {
    fields.Refuse(name);
  }
}

// Reads bad_words as vLLM does: each word at the beginning of a text, and after a space where that
// is a different token.
std::vector<std::vector<int32_t>> ReadBadWords(Fields& fields, const ServedModel& model) {
  std::vector<std::vector<int32_t>> result;
  const Json* words = fields.Array("bad_words");
  if (words == nullptr) return result;
  if (words->size() > kMaxBadWords) {
    fields.Fail("bad_words", fmt::format("at most {} words are allowed", kMaxBadWords));
  }
  for (const Json& word : *words) {
    if (!word.is_string()) fields.Fail("bad_words", "an array of strings is expected");
    const auto& text = word.get_ref<const std::string&>();
    const size_t begin = text.find_first_not_of(' ');
    if (begin == std::string::npos) {
      fields.Fail("bad_words", "a word is empty or consists of spaces");
    }
    const auto encode = [&](std::string_view written) {
      return model.tokenizer().Encode(
          written,
          {.add_special_tokens = false, .max_tokens = MostPromptTokens(written.size(), model)});
    };
    std::string with_space = " ";
    with_space.append(text, begin);
    auto plain = encode(std::string_view(with_space).substr(1)), spaced = encode(with_space);
    const bool other = spaced.size() == plain.size() && spaced.front() != plain.front();
    result.push_back(std::move(plain));
    if (other) result.push_back(std::move(spaced));
  }
  return result;
}

// Fields that vLLM and OpenAI support and this engine does not.
void RefuseUnsupported(Fields& fields) {
  fields.RefuseUnless("spaces_between_special_tokens", {true});
  fields.RefuseUnless("use_beam_search", {false});
  fields.RefuseUnless("length_penalty", {1.0});
  fields.IgnoreUnless("priority", {0}, "requests of one client start in order of arrival");
  fields.IgnoreUnless("service_tier", {"auto", "default"}, "the server has only one tier");
  for (const char* name :
       {"allowed_token_ids", "kv_transfer_params", "cache_salt", "logits_processors"}) {
    fields.Refuse(name);
  }
  RefuseOtherSamplers(fields);
  // Labels for the operator of a service; nothing here depends on them.
  fields.Ignore({"user", "safety_identifier", "prompt_cache_key", "metadata"});
}

}  // namespace

Request ReadGenerationFields(Fields& fields, const ServedModel& model) {
  Request request;
  SamplingParams& params = request.sampling;
  params = model.engine->default_sampling();
  const auto temperature = fields.Number("temperature");
  const auto top_p = fields.Number("top_p");
  const auto top_k = fields.Int("top_k", -1, kMaxInt);
  const auto min_p = fields.Number("min_p");
  request.n = static_cast<int>(fields.Int("n", 1, model.limits.max_samples).value_or(1));
  if (top_p) params.top_p = *top_p;
  if (top_k) params.top_k = static_cast<int>(std::max<int64_t>(*top_k, 0));  // vLLM: -1 is off
  if (min_p) params.min_p = *min_p;
  if (temperature) {
    params.temperature = *temperature;
  } else if (params.temperature == 0 && (top_p || top_k || min_p || request.n > 1)) {
    params.temperature = 1;
  }
  if (const auto value = fields.Number("repetition_penalty")) params.repetition_penalty = *value;
  if (const auto value = fields.Number("presence_penalty")) params.presence_penalty = *value;
  if (const auto value = fields.Number("frequency_penalty")) params.frequency_penalty = *value;
  if (const auto seed = fields.Int("seed", std::numeric_limits<int64_t>::min(),
                                   std::numeric_limits<int64_t>::max())) {
    if (*seed != -1) params.seed = static_cast<uint64_t>(*seed);  // -1: any, as in other servers
  }
  ReadLogitBias(fields, &params);
  params.Validate();
  request.stop = ReadStops(fields);
  if (auto ids = fields.Ids("stop_token_ids")) request.stop_token_ids = std::move(*ids);
  request.ignore_eos = fields.Bool("ignore_eos").value_or(false);
  request.skip_special_tokens = fields.Bool("skip_special_tokens").value_or(true);
  request.include_stop = fields.Bool("include_stop_str_in_output").value_or(false);
  request.min_tokens = fields.Int("min_tokens", 0, kMaxInt).value_or(0);
  request.bad_words = ReadBadWords(fields, model);
  ReadStructuredOutputs(fields, model, &request);
  RefuseUnsupported(fields);
  return request;
}

std::optional<int64_t> ReadMaxTokens(Fields& fields, std::string_view name,
                                     const ServedModel& model, int64_t least) {
  const Json* given = fields.Find(name);
  // How clients of llama.cpp's server say that they do not mind.
  const bool any = given != nullptr && !given->is_number_unsigned() && *given == -1;
  if (any && !StrictFields::On()) return std::nullopt;
  const auto value = fields.Int(name, least, std::numeric_limits<int64_t>::max());
  const int64_t limit = model.limits.max_tokens;
  if (value && limit > 0 && *value > limit) {
    fields.Fail(name, fmt::format("answers of this server have at most {} tokens", limit));
  }
  return value;
}

int64_t ReadTruncation(Fields& fields, const ServedModel& model,
                       std::optional<int64_t> max_tokens) {
  const auto most = fields.Int("truncate_prompt_tokens", -1, kMaxInt);
  if (!most) return 0;
  if (*most == 0) fields.Fail("truncate_prompt_tokens", "no token of the prompt would be left");
  if (*most > 0) return *most;
  int64_t left = model.engine->memory_plan().largest_context - max_tokens.value_or(1);
  if (model.limits.max_prompt > 0) left = std::min(left, model.limits.max_prompt);
  return std::max<int64_t>(left, 1);
}

void Truncate(int64_t most, std::vector<int32_t>* prompt) {
  const auto size = static_cast<int64_t>(prompt->size());
  if (most > 0 && size > most) prompt->erase(prompt->begin(), prompt->end() - most);
}

void ReadReportFields(Fields& fields, StreamOptions* options, Request* request) {
  options->token_ids = fields.Bool("return_token_ids").value_or(false);
  if (const auto count = fields.Int("prompt_logprobs", 0, 20)) {
    if (options->stream)
      fields.Fail("prompt_logprobs", "they are not available in streams: leave out 'stream'");
    options->prompt_logprobs = static_cast<int>(*count);
    request->prompt_logprobs = options->prompt_logprobs;
  }
}

StreamOptions ReadStreamFields(Fields& fields) {
  StreamOptions options;
  options.stream = fields.Bool("stream").value_or(false);
  options.timings = fields.Bool("timings_per_token").value_or(false);
  options.progress = fields.Bool("return_progress").value_or(false);
  if (options.progress && !options.stream) {
    IgnoreField("return_progress", "progress is only sent in streams: set 'stream' too");
  }
  if (const Json* object = fields.Object("stream_options")) {
    if (!options.stream)
      IgnoreField("stream_options", "it only applies to streams: set 'stream' too");
    Fields inner(*object, "stream_options.");
    options.include_usage = inner.Bool("include_usage").value_or(false);
    // Padding that hides token lengths from an observer of encrypted packets.
    inner.IgnoreUnless("include_obfuscation", {false});
    inner.IgnoreUnless("continuous_usage_stats", {false});
    inner.Finish();
  }
  return options;
}

void ReadModelField(Fields& fields, const ServedModel& model) {
  const auto name = fields.String("model");
  if (!name || std::find(model.names.begin(), model.names.end(), *name) != model.names.end()) {
    return;
  }
  throw ApiError(
      404, "invalid_request_error", "model_not_found", "model",
      fmt::format("this server has no model '{}': it serves {}", *name, Join(model.names)));
}

}  // namespace litecache::server
