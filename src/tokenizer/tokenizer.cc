#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/work_limit.h"
#include "tokenizer/piece.h"
#include "tokenizer/stream_decoder.h"
#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/utf8.h"

namespace litecache::tokenizer {
namespace {

constexpr size_t kMaxText = size_t{1} << 30;

}  // namespace

int32_t Tokenizer::Impl::Find(std::string_view token) const {
  const auto it = added.ids().find(std::string(token));
  return it != added.ids().end() ? it->second : model->TokenToId(token);
}

void Tokenizer::Impl::AddToken(const AddedToken& token) {
  if (token.content.empty()) return;
  int32_t id = Find(token.content);
  if (id < 0) id = next_added_id++;
  added.Add(token, id, normalizer.get());
}

const std::string* Tokenizer::Impl::DecoderText(int32_t id, bool skip_special) const {
  const std::string* text =
      added.Find(id) != nullptr ? &added.DecoderText(id) : model->IdToToken(id);
  if (text != nullptr && skip_special && added.IsSpecialContent(*text)) return nullptr;
  return text;
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::Encode(std::string_view text, EncodeOptions options) const {
  if (text.size() > kMaxText) {
    throw InvalidArgument("a text of {} bytes is too long to encode (at most {} bytes)",
                          text.size(), kMaxText);
  }
  TextArena arena;
  std::string repaired;
  if (!IsValidUtf8(text)) {
    repaired = RepairUtf8(text);
    text = repaired;
  }
  Pieces pieces;
  if (!text.empty()) pieces.push_back({text, -1, true});
  impl_->added.Split(false, options.parse_special, &pieces);
  if (impl_->normalizer != nullptr) {
    for (Piece& piece : pieces) {
      if (piece.token >= 0) continue;
      NormalizedText normalized{std::string(piece.text)};
      impl_->normalizer->Apply(&normalized);
      piece.text = arena.Copy(normalized.text);
      piece.starts_input = piece.starts_input && !normalized.front_removed;
    }
    std::erase_if(pieces, [](const Piece& p) { return p.token < 0 && p.text.empty(); });
  }
  impl_->added.Split(true, options.parse_special, &pieces);
  if (impl_->pre_tokenizer != nullptr) impl_->pre_tokenizer->Apply(&pieces, &arena);

  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 4);
  Bpe::Encoder encoder(*impl_->model);
  Bpe::Encoder::IsControl control;
  if (!options.parse_special) {
    control = [&](std::string_view token) {
      return impl_->added.IsSpecialContent(std::string(token));
    };
  }
  for (const Piece& piece : pieces) {
    CheckWork();
    if (ids.size() > options.max_tokens) {
      throw CapacityError("the text has more than {} tokens", options.max_tokens);
    }
    if (piece.token >= 0) {
      ids.push_back(piece.token);
    } else {
      encoder.Encode(piece.text, &ids, control);
    }
  }
  return impl_->post_processor.Apply(std::move(ids), options.add_special_tokens);
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  DecodeChain chain(*impl_->decoder);
  for (const int32_t id : ids) {
    if (const std::string* token = impl_->DecoderText(id, skip_special)) chain.Put(*token);
  }
  chain.Finish();
  return chain.Take();
}

int32_t Tokenizer::vocab_size() const {
  int32_t largest = impl_->model->max_id();
  for (const auto& [content, id] : impl_->added.ids()) largest = std::max(largest, id);
  return largest + 1;
}

size_t Tokenizer::longest_token() const {
  size_t longest = impl_->model->longest_token();
  for (const auto& [content, id] : impl_->added.ids()) longest = std::max(longest, content.size());
  return longest;
}

std::optional<int32_t> Tokenizer::TokenToId(std::string_view token) const {
  const int32_t id = impl_->Find(token);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::optional<std::string> Tokenizer::IdToToken(int32_t id) const {
  if (const AddedToken* token = impl_->added.Find(id)) return token->content;
  const std::string* token = impl_->model->IdToToken(id);
  return token == nullptr ? std::nullopt : std::optional(*token);
}

std::optional<int32_t> Tokenizer::bos_id() const { return impl_->bos_id; }
std::optional<int32_t> Tokenizer::eos_id() const { return impl_->eos_id; }

bool Tokenizer::IsSpecial(int32_t id) const {
  const AddedToken* token = impl_->added.Find(id);
  return token != nullptr && impl_->added.IsSpecialContent(token->content);
}

StreamDecoder::StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special,
                             std::vector<int32_t> kept)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special), kept_(std::move(kept)) {}
StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::Add(int32_t id) {
  if (chain_ == nullptr) chain_ = std::make_unique<DecodeChain>(*tokenizer_->impl_->decoder);
  const bool skip = skip_special_ && std::find(kept_.begin(), kept_.end(), id) == kept_.end();
  const std::string* token = tokenizer_->impl_->DecoderText(id, skip);
  if (token == nullptr) return {};
  chain_->Put(*token);
  return chain_->Take();
}

std::string StreamDecoder::Flush() {
  if (chain_ == nullptr) return {};
  chain_->Finish();
  std::string rest = chain_->Take();
  chain_.reset();
  return rest;
}

}  // namespace litecache::tokenizer
