// Reads the model of a tokenizer.json.
#include <algorithm>
#include <limits>
#include <utility>

#include "tokenizer/bpe.h"
#include "tokenizer/json_fields.h"

namespace litecache::tokenizer {
namespace {

BpeOptions LoadOptions(const Json& json, std::string_view where) {
  BpeOptions options;
  if (const Json* unk = FindField(json, "unk_token")) {
    options.unk_token = AsString(*unk, At(where, "unk_token"));
    options.has_unk_token = true;
  }
  options.continuing_subword_prefix = StringOr(json, "continuing_subword_prefix", "", where);
  options.end_of_word_suffix = StringOr(json, "end_of_word_suffix", "", where);
  options.fuse_unk = BoolOr(json, "fuse_unk", false, where);
  options.byte_fallback = BoolOr(json, "byte_fallback", false, where);
  options.ignore_merges = BoolOr(json, "ignore_merges", false, where);
  if (const Json* dropout = FindField(json, "dropout")) {
    if (!dropout->is_number() || dropout->get<double>() != 0) {
      throw Unsupported("{}: {} (merges left out at random) is not supported", At(where, "dropout"),
                        Shown(*dropout));
    }
  }
  return options;
}

Vocabulary LoadVocabulary(const Json& json, std::string_view where) {
  const Json& vocab = RequireField(json, "vocab", where);
  if (!vocab.is_object()) throw FileError("{}: not an object", At(where, "vocab"));
  Vocabulary vocabulary;
  vocabulary.reserve(vocab.size());
  std::vector<bool> taken;
  for (const auto& [token, value] : vocab.items()) {
    const int32_t id = AsTokenId(value, At(where, fmt::format("vocab[\"{}\"]", token)));
    if (static_cast<size_t>(id) >= taken.size()) taken.resize(static_cast<size_t>(id) + 1);
    if (taken[static_cast<size_t>(id)]) {
      throw FileError("{}: the id {} is given twice, the second time to \"{}\"", At(where, "vocab"),
                      id, token);
    }
    taken[static_cast<size_t>(id)] = true;
    vocabulary.emplace(token, id);
  }
  return vocabulary;
}

// Splits a merge into its two parts: ["a", "b"] or, in older files, "a b".
std::pair<std::string_view, std::string_view> MergeParts(const Json& merge,
                                                         const std::string& where) {
  if (merge.is_string()) {
    const std::string_view text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
             merge[1].is_string()) {
    return {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
  }
  throw FileError("{}: {} is not a pair of tokens", where, Shown(merge));
}

std::vector<Bpe::Merge> LoadMerges(const Json& json, const Vocabulary& vocabulary,
                                   size_t prefix_size, std::string_view where) {
  const Json& list = AsArray(RequireField(json, "merges", where), At(where, "merges"));
  std::vector<Bpe::Merge> merges;
  merges.reserve(list.size());
  std::string joined;
  for (size_t i = 0; i < list.size(); ++i) {
    // Older files may contain the first line of merges.txt.
    if (list[i].is_string() && list[i].get_ref<const std::string&>().starts_with("#version")) {
      continue;
    }
    const std::string at = At(where, "merges", i);
    const auto [left, right] = MergeParts(list[i], at);
    const auto id = [&](std::string_view token) {
      const auto it = vocabulary.find(token);
      if (it == vocabulary.end()) {
        throw FileError("{}: \"{}\" of {} is not in the vocabulary", at, token, Shown(list[i]));
      }
      return it->second;
    };
    const int32_t left_id = id(left);
    const int32_t right_id = id(right);
    if (right.size() < prefix_size) {
      throw FileError("{}: \"{}\" is shorter than continuing_subword_prefix", at, right);
    }
    joined.assign(left);
    joined.append(right.substr(prefix_size));
    merges.push_back({left_id, right_id, id(joined)});
  }
  return merges;
}

}  // namespace

std::unique_ptr<Bpe> LoadBpe(const Json& json, std::string_view where) {
  if (!json.is_object()) throw FileError("{}: not an object", where);
  const std::string type = StringOr(json, "type", "BPE", where);
  if (type != "BPE") {
    throw Unsupported("{}.type: the model \"{}\" is not supported (only BPE is)", where, type);
  }
  BpeOptions options = LoadOptions(json, where);
  Vocabulary vocabulary = LoadVocabulary(json, where);
  const std::vector<Bpe::Merge> merges =
      LoadMerges(json, vocabulary, options.continuing_subword_prefix.size(), where);
  return std::make_unique<Bpe>(std::move(vocabulary), merges, std::move(options));
}

}  // namespace litecache::tokenizer
