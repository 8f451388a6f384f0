#include "tokenizer/post_processor.h"

#include <string>
#include <utility>

#include "tokenizer/json_fields.h"

namespace litecache::tokenizer {
namespace {

// ["[CLS]", 101] -> 101.
int32_t PairId(const Json& json, std::string_view key, std::string_view where) {
  const Json& pair = RequireField(json, key, where);
  if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string()) {
    throw FileError("{}: {} is not [token, id]", At(where, key), Shown(pair));
  }
  return AsTokenId(pair[1], At(where, key));
}

std::vector<int32_t> SpecialIds(const Json& json, const std::string& name, std::string_view where) {
  const Json& specials = RequireField(json, "special_tokens", where);
  const std::string at = At(where, fmt::format("special_tokens[\"{}\"]", name));
  const Json* special = FindField(specials, name);
  if (special == nullptr) throw FileError("{}: missing, but the template uses it", at);
  std::vector<int32_t> ids;
  for (const Json& id : AsArray(RequireField(*special, "ids", at), At(at, "ids"))) {
    ids.push_back(AsTokenId(id, At(at, "ids")));
  }
  return ids;
}

}  // namespace

std::vector<int32_t> PostProcessor::Apply(std::vector<int32_t> ids, bool add_special_tokens) const {
  if (identity_) return ids;
  std::vector<int32_t> out;
  out.reserve(ids.size() + 2);
  for (const Part& part : parts_) {
    if (part.is_text) {
      out.insert(out.end(), ids.begin(), ids.end());
    } else if (add_special_tokens) {
      out.insert(out.end(), part.ids.begin(), part.ids.end());
    }
  }
  return out;
}

std::vector<int32_t> PostProcessor::AddedIds() const {
  std::vector<int32_t> ids;
  for (const Part& part : parts_) ids.insert(ids.end(), part.ids.begin(), part.ids.end());
  return ids;
}

PostProcessor LoadPostProcessor(const Json& json, std::string_view where, int depth) {
  CheckDepth(depth, where);
  const std::string& type = RequireString(json, "type", where);
  PostProcessor processor;
  if (type == "ByteLevel") return processor;
  if (type == "Sequence") {
    const Json& list = AsArray(RequireField(json, "processors", where), At(where, "processors"));
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string at = At(where, "processors", i);
      PostProcessor part = LoadPostProcessor(list[i], at, depth + 1);
      if (part.identity_) continue;
      if (!processor.identity_) {
        throw Unsupported("{}: a second processor that adds tokens is not supported", at);
      }
      processor = std::move(part);
    }
    return processor;
  }
  processor.identity_ = false;
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    processor.parts_.push_back({false, {PairId(json, "cls", where)}});
    processor.parts_.push_back({true, {}});
    processor.parts_.push_back({false, {PairId(json, "sep", where)}});
    return processor;
  }
  if (type != "TemplateProcessing") {
    throw Unsupported("{}.type: the post-processor \"{}\" is not supported", where, type);
  }
  const Json& single = AsArray(RequireField(json, "single", where), At(where, "single"));
  constexpr size_t kMaxParts = 64;
  if (single.size() > kMaxParts) {
    throw Unsupported("{}: more than {} parts", At(where, "single"), kMaxParts);
  }
  for (size_t i = 0; i < single.size(); ++i) {
    const std::string at = At(where, "single", i);
    if (const Json* sequence = FindField(single[i], "Sequence")) {
      const std::string& id = RequireString(*sequence, "id", At(at, "Sequence"));
      if (id != "A") throw Unsupported("{}: the sequence \"{}\" in a single template", at, id);
      processor.parts_.push_back({true, {}});
    } else if (const Json* special = FindField(single[i], "SpecialToken")) {
      const std::string& id = RequireString(*special, "id", At(at, "SpecialToken"));
      processor.parts_.push_back({false, SpecialIds(json, id, where)});
    } else {
      throw Unsupported("{}: {} is neither a Sequence nor a SpecialToken", at, Shown(single[i]));
    }
  }
  return processor;
}

}  // namespace litecache::tokenizer
