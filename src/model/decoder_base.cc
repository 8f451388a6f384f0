#include "model/decoder_base.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "device/recording_key.h"
#include "device/sections.h"
#include "model/shard.h"
#include "ops/dense/embedding.h"
#include "ops/dense/gather.h"
#include "ops/linear/linear.h"

namespace litecache::model {

uint64_t DecoderBase::weight_bytes() const {
  uint64_t bytes = weights_->bytes();
  if (const WeightStream* stream = weights_->stream()) {
    bytes += stream->device_bytes() - stream->host_bytes();
  }
  if (const ExpertStore* experts = weights_->experts()) {
    bytes += experts->device_bytes() - experts->host_bytes();
  }
  return bytes;
}

uint64_t DecoderBase::host_weight_bytes() const {
  uint64_t bytes = 0;
  if (weights_->stream() != nullptr) bytes += weights_->stream()->host_bytes();
  if (weights_->experts() != nullptr) bytes += weights_->experts()->host_bytes();
  return bytes;
}

int64_t DecoderBase::offloaded_layers() const {
  int64_t count = 0;
  for (int64_t layer = 0; weights_->stream() != nullptr && layer < config_.layers; ++layer) {
    count += weights_->stream()->Offloads(layer);
  }
  return count;
}

uint64_t DecoderBase::moved_weight_bytes() const {
  const uint64_t moved = weights_->stream() == nullptr ? 0 : weights_->stream()->moved_bytes();
  return moved + expert_counts().bytes;
}

ExpertCounts DecoderBase::expert_counts() const {
  return weights_->experts() == nullptr ? ExpertCounts() : weights_->experts()->counts();
}

uint64_t DecoderBase::weight_bytes_per_step(int64_t rows) const {
  const ExpertConfig& experts = config_.experts;
  double unused = 0;
  if (experts.count > 0) {
    const double share =
        1 - static_cast<double>(experts.active) / static_cast<double>(experts.count);
    unused = static_cast<double>(expert_bytes_) * std::pow(share, rows);
  }
  return weights_->bytes() - gathered_bytes_ + gathered_row_bytes_ - static_cast<uint64_t>(unused);
}

void DecoderBase::CountExperts(const ExpertBlock& block) {
  const ops::ExpertLayer& experts = block.experts;
  for (const ops::ExpertMatrices* matrices : {&experts.gate, &experts.up, &experts.down}) {
    expert_bytes_ += static_cast<uint64_t>(config_.experts.own_count()) *
                     WeightBytesOf(matrices->type, on_gpu());
  }
}

std::string DecoderBase::FindPrefix(std::initializer_list<const char*> prefixes,
                                    const std::string& name) const {
  for (const char* prefix : prefixes) {
    if (weights_->Has(prefix + name)) return prefix;
  }
  return *prefixes.begin();
}

void DecoderBase::FinishWeights(DType dtype, std::initializer_list<MatrixView> gathered) {
  config_.weight_dtype = dtype == DType::kBlocks ? DType::kBF16 : dtype;
  for (const MatrixView& table : gathered) {
    const auto row = static_cast<uint64_t>(table.RowBytes());
    gathered_bytes_ += row * static_cast<uint64_t>(table.rows);
    gathered_row_bytes_ += row;
  }
}

void DecoderBase::CheckStep(const kv::Step& step, std::span<const int32_t> tokens,
                            std::span<const int32_t> positions, const kv::Cache& cache,
                            std::span<const int64_t> logit_rows, const MatrixView& logits) const {
  const auto rows = static_cast<size_t>(step.rows);
  LC_CHECK(step.rows > 0 && tokens.size() == rows && positions.size() == rows,
           "{} rows, {} tokens, {} positions", step.rows, tokens.size(), positions.size());
  const kv::Layout& layout = cache.layout();
  LC_CHECK(layout.layers == config_.layers && layout.q_heads == config_.q_heads &&
               layout.kv_heads == config_.kv_heads && layout.head_dim == config_.head_dim,
           "the cache was made for another model");
  LC_CHECK(logit_rows.size() <= rows, "{} logit rows of {}", logit_rows.size(), rows);
  if (!logit_rows.empty()) {
    LC_CHECK(logits.dtype == DType::kF32 && logits.cols == config_.vocab &&
                 logits.rows == static_cast<int64_t>(logit_rows.size()),
             "logits are [{}, {}]", logits.rows, logits.cols);
  }
  for (const int64_t row : logit_rows) {
    LC_CHECK(row >= 0 && row < step.rows, "logit row {} of {}", row, step.rows);
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= config_.vocab) {
      throw InvalidArgument("token id {} is outside the model's vocabulary of {}", token,
                            config_.vocab);
    }
  }
  for (const int32_t position : positions) {
    if (position < 0 || position >= config_.max_context) {
      throw InvalidArgument("position {} is outside the model's context of {} tokens", position,
                            config_.max_context);
    }
  }
}

void DecoderBase::SumOverRanks(
    Stream& stream, ops::Epilogue epilogue, const MatrixView& y,
    const std::function<void(ops::Epilogue, const MatrixView&)>& compute) const {
  if (ranks_ == nullptr) return compute(epilogue, y);
  const MatrixView summand = ranks_->NextSummand(y.rows, y.cols);
  if (summand.rows > 0) {
    compute(ops::Epilogue::kStore, summand);
    ranks_->SumSummands(stream, summand, epilogue, y);
    return;
  }
  // What all ranks have in y, rank 0 adds.
  compute(ranks_->rank() == 0 ? epilogue : ops::Epilogue::kStore, y);
  ranks_->AllReduce(stream, y);
}

void DecoderBase::SumOfProducts(Stream& stream, const MatrixView& input,
                                const LinearWeights& output, ops::Epilogue epilogue,
                                const MatrixView& y) const {
  SumOverRanks(stream, epilogue, y, [&](ops::Epilogue how, const MatrixView& to) {
    ops::Linear(stream, input, output.weight, output.bias, to, how);
  });
}

void DecoderBase::Embed(Stream& stream, const MatrixView& table, std::span<const int32_t> tokens,
                        const MatrixView& y) const {
  const int64_t first = ranks_ != nullptr ? VocabularyOf(config_).first : ops::kWholeTable;
  ops::Embedding(stream, table, tokens, y, ops::Epilogue::kStore, first);
  if (ranks_ != nullptr) ranks_->AllReduce(stream, y);
}

LogitParts PlaceLogits(Arena& arena, const ModelConfig& config, int64_t logit_rows) {
  if (config.shard.whole == nullptr) return {};
  const int64_t padded = VocabularyOf(config).padded;
  return {arena.Take(logit_rows, padded), arena.Take(config.shard.ranks * logit_rows, padded)};
}

void DecoderBase::TakeLogits(Stream& stream, const MatrixView& h, const MatrixView& head,
                             const LogitParts& memory, const MatrixView& logits) const {
  if (ranks_ == nullptr) return ops::Linear(stream, h, head, nullptr, logits);
  const auto& [own, all] = memory;
  ops::Linear(stream, h, head, nullptr, own.Columns(0, head.rows));
  ranks_->AllGather(stream, own, all);
  for (int rank = 0; rank < config_.shard.ranks; ++rank) {
    const int64_t first = rank * own.cols;
    const int64_t count = std::min(own.cols, config_.vocab - first);
    if (count <= 0) break;
    ops::CopyRows(stream, all.Rows(rank * own.rows, own.rows).Columns(0, count),
                  logits.Columns(first, count));
  }
}

Arena DecoderBase::Workspace(size_t bytes) {
  if (workspace_.size() < bytes) {
    workspace_ = Buffer();  // frees the old one first: the memory plan counts only one
    workspace_ = device_.Allocate(bytes);
  }
  return Arena(workspace_.as<std::byte>());
}

void DecoderBase::Run(Stream& stream, const kv::Step& step, std::span<const int32_t> tokens,
                      std::span<const int32_t> positions, kv::Cache& cache,
                      std::span<const int64_t> logit_rows, const MatrixView& logits,
                      const std::function<void(const Inputs&)>& issue) {
  constexpr int64_t kLists = 3;
  if (input_rows_ < step.rows) {
    // Rarely needed, since recordings that use the old memory become useless.
    const int64_t size = std::max<int64_t>({step.rows, 2 * input_rows_, 1024});
    inputs_ = device_.CreateMirror(static_cast<size_t>(kLists * size) * sizeof(int32_t));
    input_rows_ = size;
  }
  const auto rows = static_cast<size_t>(step.rows);
  auto* host = inputs_->host<int32_t>();
  std::copy(tokens.begin(), tokens.end(), host);
  std::copy(positions.begin(), positions.end(), host + rows);
  bool identity = logit_rows.size() == rows;
  for (size_t i = 0; i < logit_rows.size(); ++i) {
    identity = identity && logit_rows[i] == static_cast<int64_t>(i);
    host[2 * rows + i] = static_cast<int32_t>(logit_rows[i]);
  }
  const auto* ids = inputs_->device<const int32_t>();
  const Inputs inputs{
      {ids, rows}, {ids + rows, rows}, {ids + 2 * rows, logit_rows.size()}, !identity};
  const auto body = [&] {
    Mark(stream, Section::kRest);
    inputs_->Send(stream, kLists * rows * sizeof(int32_t));
    issue(inputs);
    Mark(stream, Section::kRest);
  };
  // The next step's first weights are copied while this one ends and its tokens are sampled. A
  // recording could not do that, so such steps are issued. A layer's weights take milliseconds.
  if (WeightStream* weights = weights_->stream()) {
    weights->Settle(stream);
    body();
    weights->Settle(stream);
    return;
  }
  std::optional<uint64_t> key;
  // Every prompt chunk is another one; steps that verify drafts come again.
  const auto comes_again = [](const kv::StepSequence& part) { return part.decode || part.drafted; };
  if (identity && std::ranges::all_of(step.sequences, comes_again)) key = cache.ReplayKey(step);
  if (!key) return body();
  if (config_.quantized) ops::PrepareQuantizedLinear(stream);
  RecordingKey of_step;
  of_step.Add(*key).AddAddress(&cache).Add(*inputs_).Add(workspace_).AddAddress(logits.data);
  stream.Run(of_step.Add(rows).value(), body);
}

}  // namespace litecache::model
