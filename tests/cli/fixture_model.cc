#include "cli/fixture_model.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "model/families.h"
#include "source_directory.h"

namespace litecache::testing {
namespace {

using Json = nlohmann::ordered_json;

// GPT-2's printable character for a byte, as UTF-8.
std::string StandIn(int byte) {
  const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += !printable(b);
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

constexpr const char* kTemplate =
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

}  // namespace

std::filesystem::path FixtureDirectory(const std::string& name) {
  return SourceDirectory() / "tests" / "fixtures" / "models" / name;
}

std::string FixtureTokenizer() {
  const std::vector<std::string> special = {"<unk>",    "<s>",           "</s>",
                                            "<|user|>", "<|assistant|>", "<|system|>"};
  Json vocab = Json::object();
  Json added = Json::array();
  for (const auto& token : special) {
    added.push_back({{"id", vocab.size()},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    vocab[token] = vocab.size();
  }
  const auto add_byte = [&](int byte) { vocab[StandIn(byte)] = vocab.size(); };
  add_byte('\t');
  add_byte('\n');
  for (int byte = 32; byte < 127; ++byte) add_byte(byte);
  for (int byte = 0x80; byte < 0xC0; ++byte) add_byte(byte);
  for (const int byte : {0xC2, 0xC3, 0xE2, 0xE4, 0xF0}) add_byte(byte);
  Json merges = Json::array();
  const std::string space = StandIn(' ');
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"t", "h"}, {"th", "e"}, {"i", "n"}, {space, "the"}, {"e", "r"},
      {"a", "n"}, {"o", "n"},  {"r", "e"}, {space, "a"},   {space, "s"}};
  for (const auto& [left, right] : pairs) {
    vocab[left + right] = vocab.size();
    merges.push_back(left + " " + right);
  }
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  const Json begin = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const Json second = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
  return Json{{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", added},
              {"normalizer", nullptr},
              {"pre_tokenizer", byte_level},
              {"post_processor",
               {{"type", "TemplateProcessing"},
                {"single", Json::array({begin, text})},
                {"pair", Json::array({begin, text, second})},
                {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}}}}},
              {"decoder", byte_level},
              {"model",
               {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"vocab", vocab},
                {"merges", merges}}}}
      .dump();
}

FixtureModel::FixtureModel(int64_t max_context, const std::string& name) {
  const auto source = FixtureDirectory(name);
  auto config = Json::parse(ReadFile(source / "config.json"));
  config["max_position_embeddings"] = max_context;
  directory_.Write("config.json", config.dump());
  std::filesystem::create_symlink(source / "model.safetensors",
                                  directory_.path() / "model.safetensors");
  directory_.Write("generation_config.json", R"({"do_sample": false})");
  directory_.Write("tokenizer.json", FixtureTokenizer());
  directory_.Write(
      "tokenizer_config.json",
      Json{{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"chat_template", kTemplate}}.dump());
}

std::vector<std::string> FamilyNames() {
  std::vector<std::string> names;
  for (const model::FamilySpec& family : model::Families()) {
    names.emplace_back(model::Name(family.family));
  }
  return names;
}

const FixtureModel& SharedModel() {
  static const FixtureModel model;
  return model;
}

const FixtureModel& EndlessModel() {
  static const FixtureModel model(int64_t{1} << 24);
  return model;
}

std::string Join(const std::vector<int32_t>& ids) { return fmt::format("{}", fmt::join(ids, " ")); }

}  // namespace litecache::testing
