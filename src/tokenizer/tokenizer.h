// Converts text to token ids and back, as described by Hugging Face's tokenizer.json or in GGUF.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace litecache::tokenizer {

struct EncodeOptions {
  // Adds the model's special tokens around a text, such as <|begin_of_text|>.
  bool add_special_tokens = true;
  // Special tokens written out in the text become those tokens. With false they are ordinary text,
  // for text from a source that must not be able to control the model.
  bool parse_special = true;
  // Throws CapacityError beyond this number: a text that is far too long need not be encoded to its
  // end.
  size_t max_tokens = SIZE_MAX;
};

// Equal to the `tokenizers` package, id by id. Immutable: any number of threads may use it at once.
class Tokenizer {
 public:
  // The tokenizer of a model: of a directory's tokenizer.json, and tokenizer_config.json and
  // special_tokens_map.json if they exist (begin-of-text, end-of-text, further added tokens), or of
  // a GGUF file's metadata. Throws FileError for missing or malformed files, and an Unsupported
  // that names the field and its value for unsupported features.
  static std::shared_ptr<const Tokenizer> FromModel(const std::filesystem::path& model);
  // The same; null if the model has no tokenizer.
  static std::shared_ptr<const Tokenizer> FindIn(const std::filesystem::path& model);

  // Reads only a tokenizer.json.
  static std::shared_ptr<const Tokenizer> FromFile(const std::filesystem::path& file);

  // The text of a tokenizer.json; `name` stands for its path in messages. `config_json` and
  // `special_map_json` are the texts of the other two files, or empty.
  static std::shared_ptr<const Tokenizer> FromJson(std::string_view json,
                                                   std::string_view name = "tokenizer.json",
                                                   std::string_view config_json = {},
                                                   std::string_view special_map_json = {});

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // The ids of a text. In invalid UTF-8 every maximal ill-formed sequence is read as U+FFFD, like
  // Python's errors="replace". Throws InvalidArgument for more than 1 GiB of text, and
  // CapacityError if a normalizer expands the text too much or there are more tokens than
  // options.max_tokens.
  std::vector<int32_t> Encode(std::string_view text, EncodeOptions options = {}) const;

  // The text of ids, always valid UTF-8. skip_special leaves special tokens out. Ids without a
  // token (models pad their vocabulary) produce nothing.
  std::string Decode(std::span<const int32_t> ids, bool skip_special) const;

  // The largest token id plus one. Models may have more rows than that, never fewer.
  int32_t vocab_size() const;

  // The id of a token as spelled in the vocabulary (" the" is "Ġthe" in a byte-level one).
  std::optional<int32_t> TokenToId(std::string_view token) const;
  std::optional<std::string> IdToToken(int32_t id) const;

  // The bytes that every token stands for inside a text, by id; they may be part of a character,
  // and include a leading space. Empty for special tokens and for ids without a token.
  std::vector<std::string> AllTokenBytes() const;
  std::string TokenBytes(int32_t id) const;  // the same of one token

  // Begin-of-text and end-of-text tokens, if tokenizer_config.json or special_tokens_map.json name
  // them.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;

  // Bytes of the longest token, as spelled in the vocabulary.
  size_t longest_token() const;

  // Whether it is a control token such as <|eot_id|>, which Decode can leave out.
  bool IsSpecial(int32_t id) const;

  struct Impl;  // tokenizer_impl.h

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace litecache::tokenizer
