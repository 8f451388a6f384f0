// Decoders: convert token strings back to text, one token at a time.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace litecache::tokenizer {

// One step of a decoding in progress. Receives tokens as one or several fragments (whole
// characters), and passes its output on as soon as later input cannot change it.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  // begins: whether the fragment is the first one of a token (possibly empty).
  virtual void Put(std::string_view fragment, bool begins) = 0;
  // No more tokens follow. Passes on what was held back.
  virtual void Finish() { next_->Finish(); }

  void set_next(DecodeStage* next) { next_ = next; }

 protected:
  DecodeStage* next_ = nullptr;
};

using DecodeStages = std::vector<std::unique_ptr<DecodeStage>>;

// Immutable, used by any number of threads.
class Decoder {
 public:
  virtual ~Decoder() = default;
  // Appends the stages of one new decoding.
  virtual void AppendStages(DecodeStages* stages) const = 0;
};

// Loads the decoder that a tokenizer.json describes; `where` is its position in the file. Types:
// Sequence, ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, BPEDecoder. Throws
// Unsupported for another type or an order that cannot be streamed, FileError for malformed fields.
std::unique_ptr<Decoder> LoadDecoder(const nlohmann::json& json, std::string_view where);

// For files without a decoder: joins tokens with spaces.
std::unique_ptr<Decoder> DefaultDecoder();

// A decoding in progress: the stages of one decoder and the text they have produced so far.
class DecodeChain {
 public:
  explicit DecodeChain(const Decoder& decoder);
  ~DecodeChain();
  void Put(std::string_view token);
  void Finish();
  // Returns the text that became certain since the last call.
  std::string Take();

 private:
  class Collector;
  DecodeStages stages_;
  std::unique_ptr<Collector> collector_;
};

}  // namespace litecache::tokenizer
