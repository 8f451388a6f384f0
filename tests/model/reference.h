// The small models under tests/fixtures/models and Transformers' results for them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "io/safetensors.h"
#include "kv/cache_plan.h"
#include "model/decoder.h"
#include "relative_error.h"
#include "source_directory.h"

namespace litecache::model {

// The option for a model in f32, or in its own type.
inline std::optional<DType> InF32(bool f32) {
  return f32 ? std::optional(DType::kF32) : std::nullopt;
}

inline std::filesystem::path FixturesDirectory() {
  return SourceDirectory() / "tests" / "fixtures" / "models";
}

// Names of all fixture models, sorted.
inline std::vector<std::string> FixtureNames() {
  std::vector<std::string> names;
  for (const auto& item : std::filesystem::directory_iterator(FixturesDirectory())) {
    if (item.is_directory()) names.push_back(item.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

// reference.safetensors of a fixture, written by tools/fixtures/make_model_fixtures.py.
struct Reference {
  std::vector<int32_t> prompt;
  std::vector<int32_t> positions;
  std::vector<float> logits;  // [positions, vocab]
  std::vector<int32_t> greedy;
  std::vector<float> margins;
  std::vector<float> scales;

  explicit Reference(const std::string& name) {
    const io::Safetensors file(FixturesDirectory() / name / "reference.safetensors");
    const auto read = [&](const char* tensor, auto& out) {
      const io::TensorInfo& info = file.tensors().at(tensor);
      out.resize(info.bytes() / sizeof(out[0]));
      std::memcpy(out.data(), file.Data(info), info.bytes());
    };
    read("prompt", prompt);
    read("positions", positions);
    read("logits", logits);
    read("greedy", greedy);
    read("margins", margins);
    read("scales", scales);
  }
};

using testing::RelativeError;

// A decoder with a cache, run step by step.
class Runner {
 public:
  Runner(Device& device, Decoder& decoder)
      : Runner(device, decoder,
               kv::MakeCachePlan(decoder.config().kv_layout(decoder.kv_dtype()), {}, nullptr,
                                 device.type())
                   ->Create(device, {.device = uint64_t{256} << 20})) {}
  Runner(Device& device, Decoder& decoder, std::unique_ptr<kv::Cache> cache)
      : device_(device),
        decoder_(decoder),
        stream_(device.CreateStream()),
        cache_(std::move(cache)) {}

  struct Part {
    kv::SequenceId sequence;
    std::vector<int32_t> tokens;
    std::vector<int64_t> logit_rows;  // within tokens
    bool decode = false;
  };

  kv::SequenceId Create() { return cache_->Create(); }
  kv::Cache& cache() { return *cache_; }

  // Runs one step over several sequences; returns the logits of their logit_rows, concatenated.
  std::vector<float> Step(const std::vector<Part>& parts) {
    kv::Step step;
    std::vector<int32_t> tokens;
    std::vector<int32_t> positions;
    std::vector<int64_t> logit_rows;
    for (const Part& part : parts) {
      const int64_t past = cache_->Length(part.sequence);
      const auto rows = static_cast<int64_t>(part.tokens.size());
      step.sequences.push_back({part.sequence, step.rows, rows, past, part.decode});
      step.decode_rows += part.decode;
      for (const int64_t row : part.logit_rows) logit_rows.push_back(step.rows + row);
      for (int64_t i = 0; i < rows; ++i) positions.push_back(static_cast<int32_t>(past + i));
      tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
      step.rows += rows;
    }
    const auto count = static_cast<int64_t>(logit_rows.size());
    const auto values = static_cast<size_t>(count * decoder_.config().vocab);
    if (values > logit_values_) {
      logits_ = device_.CreateMirror(values * sizeof(float));
      logit_values_ = values;
    }
    float* target = values > 0 ? logits_->device<float>() : nullptr;
    decoder_.Forward(*stream_, step, tokens, positions, *cache_, logit_rows,
                     MatrixView::Of(target, count, decoder_.config().vocab));
    if (values == 0) {
      stream_->Synchronize();
      return {};
    }
    logits_->Receive(*stream_, values * sizeof(float));
    stream_->Synchronize();
    return {logits_->host<float>(), logits_->host<float>() + values};
  }

  // Runs `tokens` in chunks of `chunk`; returns the logits of `rows`.
  std::vector<float> Prefill(kv::SequenceId sequence, std::span<const int32_t> tokens,
                             int64_t chunk, std::span<const int32_t> rows) {
    std::vector<float> all;
    const auto total = static_cast<int64_t>(tokens.size());
    for (int64_t begin = 0; begin < total; begin += chunk) {
      const int64_t end = std::min(begin + chunk, total);
      Part part{sequence, {tokens.begin() + begin, tokens.begin() + end}, {}};
      for (const int32_t row : rows) {
        if (row >= begin && row < end) part.logit_rows.push_back(row - begin);
      }
      const std::vector<float> logits = Step({part});
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }

 private:
  Device& device_;
  Decoder& decoder_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<kv::Cache> cache_;
  std::unique_ptr<Mirror> logits_;
  size_t logit_values_ = 0;
};

}  // namespace litecache::model
