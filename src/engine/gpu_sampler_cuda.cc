#include "engine/gpu_sampler_cuda.h"

#include <algorithm>

#include "base/error.h"
#include "device/recording_key.h"

namespace litecache::engine {
namespace {

using ops::cuda::LogitChange;
using ops::cuda::SampledToken;
using ops::cuda::SampleMode;
using ops::cuda::SampleRow;

// The most changed logits per step: at least those of one prompt with penalties, and some more.
int64_t MostChanges(int64_t vocab) { return std::max<int64_t>(vocab, 1 << 16); }

size_t InputBytes(int64_t rows, int64_t vocab) {
  return static_cast<size_t>(rows) * sizeof(SampleRow) +
         static_cast<size_t>(MostChanges(vocab)) * sizeof(LogitChange);
}

// Words in one row's mask.
int64_t MaskWords(int64_t vocab) { return (vocab + 31) / 32; }

size_t MaskBytes(int64_t rows, int64_t vocab) {
  return static_cast<size_t>(rows * MaskWords(vocab)) * sizeof(uint32_t);
}

bool AllowsSome(std::span<const uint32_t> allowed, int64_t vocab) {
  LC_CHECK(static_cast<int64_t>(allowed.size()) == MaskWords(vocab));
  const auto last = static_cast<uint32_t>(vocab % 32);
  return std::any_of(allowed.begin(), allowed.end() - 1, [](uint32_t word) { return word != 0; }) ||
         (allowed.back() & (last == 0 ? ~0u : (1u << last) - 1)) != 0;
}

SampleMode ModeOf(const SamplingParams& params, int64_t vocab) {
  if (params.temperature < kGreedyTemperature) return SampleMode::kGreedy;
  if (params.top_k > 0 && params.top_k < vocab) return SampleMode::kTopK;
  if (params.top_p < 1.0) return SampleMode::kNucleus;
  return params.min_p > 0.0 ? SampleMode::kMinP : SampleMode::kAll;
}

}  // namespace

uint64_t GpuSampler::Bytes(Stream& stream, int64_t rows, int64_t vocab) {
  return InputBytes(rows, vocab) + MaskBytes(rows, vocab) +
         static_cast<uint64_t>(rows) * sizeof(SampledToken) +
         ops::cuda::SampleScratchBytes(stream, rows, vocab);
}

GpuSampler::GpuSampler(Device& device, Stream& stream, const Mirror& logits, int64_t rows,
                       int64_t vocab)
    : logits_(logits),
      vocab_(vocab),
      max_rows_(rows),
      max_changes_(MostChanges(vocab)),
      input_(device.CreateMirror(InputBytes(rows, vocab))),
      masks_(device.CreateMirror(MaskBytes(rows, vocab))),
      tokens_(device.CreateMirror(static_cast<size_t>(rows) * sizeof(SampledToken))),
      scratch_(device.Allocate(ops::cuda::SampleScratchBytes(stream, rows, vocab))) {}

LogitChange* GpuSampler::changes(std::byte* input) const {
  return reinterpret_cast<LogitChange*>(input + static_cast<size_t>(max_rows_) * sizeof(SampleRow));
}

void GpuSampler::Clear() { count_ = changes_ = mask_words_ = 0; }

int64_t GpuSampler::Add(const Sampler& sampler, int64_t logit_row, bool logprob,
                        std::span<const uint32_t> allowed) {
  const SamplingParams& params = sampler.params();
  const std::span<const TokenHistory::Entry> seen = sampler.seen();
  const auto biases = static_cast<int64_t>(params.logit_bias.size());
  const int64_t changed = biases + static_cast<int64_t>(seen.size());
  const SampleMode mode = ModeOf(params, vocab_);
  if (count_ == max_rows_ || changes_ + changed > max_changes_) return -1;
  if (mode == SampleMode::kTopK && params.top_k > ops::cuda::kMostCandidates) return -1;
  // The host reports the error of a constraint that allows no token.
  if (!allowed.empty() && !AllowsSome(allowed, vocab_)) return -1;
  SampleRow& row = rows()[count_];
  row = {.draw = sampler.NextDraw(),
         .temperature = params.temperature,
         .top_p = params.top_p,
         .min_p = params.min_p,
         .frequency_penalty = params.frequency_penalty,
         .repetition_penalty = static_cast<float>(params.repetition_penalty),
         .presence_penalty = static_cast<float>(params.presence_penalty),
         .inverse_temperature = static_cast<float>(1.0 / params.temperature),
         .mode = mode,
         .logit_row = static_cast<int32_t>(logit_row),
         .top_k = params.top_k,
         .changes_begin = static_cast<int32_t>(changes_),
         .biases = static_cast<int32_t>(biases),
         .seen = static_cast<int32_t>(seen.size()),
         .logprob = logprob ? 1 : 0};
  if (!allowed.empty()) {
    row.mask_begin = static_cast<int32_t>(mask_words_);
    std::copy_n(allowed.begin(), MaskWords(vocab_), masks_->host<uint32_t>() + mask_words_);
    mask_words_ += MaskWords(vocab_);
  }
  LogitChange* change = changes(input_->host()) + changes_;
  for (const auto& [token, bias] : params.logit_bias) *change++ = {token, {.bias = bias}};
  for (const TokenHistory::Entry& entry : seen) {
    *change++ = {entry.token, {.generated = entry.generated}};
  }
  changes_ += changed;
  return count_++;
}

void GpuSampler::Issue(Stream& stream) {
  if (count_ == 0) return;
  const auto count = static_cast<size_t>(count_);
  const auto issue = [&](size_t input_bytes) {
    input_->Send(stream, input_bytes);
    ops::cuda::SampleTokens(stream, MatrixView::Of(logits_.device<float>(), max_rows_, vocab_),
                            input_->device<const SampleRow>(), count_, changes(input_->device()),
                            masks_->device<const uint32_t>(), tokens_->device<SampledToken>(),
                            scratch_.data());
    tokens_->Receive(stream, count * sizeof(SampledToken));
  };
  if (changes_ > 0 || mask_words_ > 0) {
    if (mask_words_ > 0) {
      masks_->Send(stream, static_cast<size_t>(mask_words_) * sizeof(uint32_t));
    }
    issue(static_cast<size_t>(max_rows_) * sizeof(SampleRow) +
          static_cast<size_t>(changes_) * sizeof(LogitChange));
    return;
  }
  // The operations are the same in each step: a recorded graph takes one launch instead of three.
  RecordingKey key("sample");
  key.Add(*input_).Add(*tokens_).Add(logits_).Add(count);
  stream.Run(key.value(), [&] { issue(count * sizeof(SampleRow)); });
}

DeviceToken GpuSampler::token(int64_t index) const {
  LC_CHECK(index >= 0 && index < count_);
  const SampledToken& token = tokens_->host<const SampledToken>()[index];
  const auto status = token.status == SampledToken::kOk          ? DeviceToken::Status::kChosen
                      : token.status == SampledToken::kNotFinite ? DeviceToken::Status::kNotFinite
                                                                 : DeviceToken::Status::kUndecided;
  return {status, token.token, token.logprob};
}

void GpuSampler::Receive(Stream& stream, int64_t logit_row, int64_t rows) {
  ops::cuda::ReceiveLogits(stream,
                           MatrixView::Of(logits_.device<float>(), logit_row + rows, vocab_),
                           logit_row, rows, logits_.host<float>() + logit_row * vocab_);
}

}  // namespace litecache::engine
