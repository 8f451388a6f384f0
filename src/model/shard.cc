#include "model/shard.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/block_format.h"
#include "base/error.h"
#include "model/weight_placement.h"

namespace litecache::model {
namespace {

using Range = TensorPart::Range;

// The part of `whole` things that a rank has; where there are fewer than ranks, ranks share one.
Range PartOfRank(int64_t whole, const Shard& shard) {
  if (whole >= shard.ranks) {
    const int64_t count = whole / shard.ranks;
    return {shard.rank * count, count};
  }
  return {shard.rank * whole / shard.ranks, 1};
}

using Ranges = std::vector<Range>;

Range Times(Range range, int64_t factor) { return {range.begin * factor, range.count * factor}; }
Range Behind(Range range, int64_t offset) { return {range.begin + offset, range.count}; }
Ranges Times(Ranges ranges, int64_t factor) {
  for (Range& range : ranges) range = Times(range, factor);
  return ranges;
}
int64_t Sum(const Ranges& ranges) {
  int64_t sum = 0;
  for (const Range& range : ranges) sum += range.count;
  return sum;
}

int64_t Divided(int64_t whole, int ranks, const char* what) {
  if (whole % ranks == 0) return whole / ranks;
  throw InvalidArgument("tensor_parallel = {}: the model's {} {} cannot be divided evenly", ranks,
                        whole, what);
}

// LITECACHE_WHOLE_EXPERTS=1 divides no expert, to measure and test what models need whose experts
// cannot be divided.
bool WholeExperts() {
  const char* variable = std::getenv("LITECACHE_WHOLE_EXPERTS");
  return variable != nullptr && std::string_view(variable) == "1";
}

// Throws where the columns of experts cannot be divided. Estimating the part's weights asks for the
// type of every matrix that its decoder has.
void DivideEachExpert(const WeightTypes& types, int ranks, ModelConfig* part) {
  part->experts.intermediate = Divided(part->experts.intermediate, ranks, "columns of experts");
  EstimateWeights(*part, types, {}, /*gpu=*/false);
}

void DivideExperts(const WeightTypes& types, int rank, int ranks, ModelConfig* part) {
  const ExpertConfig& whole = part->shard.whole->experts;
  if (!WholeExperts() || whole.count % ranks != 0) {
    try {
      return DivideEachExpert(types, ranks, part);
    } catch (const Error& error) {
      if (whole.count % ranks != 0) {
        throw InvalidArgument("{}; its {} experts cannot be divided evenly either", error.what(),
                              whole.count);
      }
    }
  }
  part->experts.intermediate = whole.intermediate;
  part->experts.own = {rank * (whole.count / ranks), whole.count / ranks};
}

class ShardedWeights final : public WeightStore {
 public:
  ShardedWeights(Device& device, const ModelConfig& config, std::unique_ptr<WeightStore> source,
                 bool passing)
      : device_(device), config_(config), source_(std::move(source)), passing_(passing) {}

  bool Has(const std::string& name) const override { return source_->Has(name); }

  MatrixView Type(const std::string& name, int64_t rows, int64_t cols) const override {
    const TensorPart part = PartOf(config_, name, rows, cols);
    return TypeOfPart(config_, source_->Type(name, part.whole_rows, part.whole_cols), name, part);
  }

  MatrixView Matrix(const std::string& name, int64_t rows, int64_t cols) override {
    const TensorPart part = PartOf(config_, name, rows, cols);
    const MatrixView whole = source_->Matrix(name, part.whole_rows, part.whole_cols);
    MatrixView view = TypeOfPart(config_, whole, name, part);
    Count(static_cast<uint64_t>(rows * view.RowBytes()));
    if (part.rows.size() == 1 && part.cols[0].count == part.whole_cols) {
      view.data = whole.Rows(part.rows[0].begin, rows).data;
      return view;
    }
    if (passing_) copies_.clear();
    copies_.push_back(device_.Allocate(static_cast<size_t>(rows * view.RowBytes())));
    view.data = copies_.back().data();
    auto* to = static_cast<std::byte*>(view.data);
    for (const Range& range : part.rows) {
      for (int64_t row = range.begin; row < range.begin + range.count; ++row) {
        const auto* from = static_cast<const std::byte*>(whole.data) + row * whole.RowBytes();
        for (const Range& columns : part.cols) {
          const int64_t begin = columns.begin * whole.RowBytes() / whole.cols;
          to = std::copy_n(from + begin, columns.count * whole.RowBytes() / whole.cols, to);
        }
      }
    }
    return view;
  }

  const float* NormWeight(const std::string& name, int64_t n, float added) override {
    return source_->NormWeight(name, n, added);
  }

  const float* Bias(const std::string& name, int64_t n) override {
    // Those of a layer's experts are one behind another.
    const ExpertConfig& experts = config_.experts;
    const bool stacked = name.find(".experts.*.") != name.npos;
    const int64_t first = stacked ? experts.own.first : 0;
    const int64_t tensors = stacked ? experts.own_count() : 1, all = stacked ? experts.count : 1;
    const TensorPart part = PartOf(config_, name, n / tensors, 1);
    if (part.zero) return NewVector(n);
    if (part.whole() && tensors == all) return source_->Bias(name, n);
    const float* const whole = source_->Bias(name, all * part.whole_rows);
    float* const own = NewVector(n);
    float* out = own;
    for (int64_t tensor = first; tensor < first + tensors; ++tensor) {
      for (const Range& range : part.rows) {
        out = std::copy_n(whole + tensor * part.whole_rows + range.begin, range.count, out);
      }
    }
    return own;
  }

  void Finish(const std::function<void(int64_t done, int64_t total)>& progress) override {
    source_->Finish(progress);
  }

 private:
  Device& device_;
  const ModelConfig config_;
  std::unique_ptr<WeightStore> source_;
  const bool passing_;
  std::vector<Buffer> copies_;
};

}  // namespace

ModelConfig ShardOf(const ModelConfig& whole, const WeightTypes& types, int rank, int ranks) {
  LC_CHECK(rank >= 0 && rank < ranks && whole.shard.whole == nullptr);
  if (ranks == 1) return whole;
  const auto refuse = [&](const char* what) {
    throw Unsupported("tensor_parallel = {}: {} ({})", ranks, what, whole.architecture);
  };
  if (whole.wide_qk_norm && whole.kv_heads % ranks != 0) {
    refuse("ranks cannot share a KV head of a model with norms over all heads");
  }
  if (whole.window_head_dim > 0) refuse("models with heads of two sizes are not divided");
  ModelConfig part = whole;
  part.shard = {rank, ranks, std::make_shared<const ModelConfig>(whole)};
  part.q_heads = Divided(whole.q_heads, ranks, "query heads");
  if (whole.kv_heads >= ranks) {
    part.kv_heads = Divided(whole.kv_heads, ranks, "KV heads");
  } else {
    part.kv_heads = 1;
    Divided(ranks, static_cast<int>(whole.kv_heads), "ranks among its KV heads");
  }
  part.intermediate = Divided(whole.intermediate, ranks, "columns of feed-forward blocks");
  if (!whole.recurrent.empty()) {
    part.delta.key_heads = Divided(whole.delta.key_heads, ranks, "key heads of recurrent layers");
    part.delta.value_heads = whole.delta.value_heads / ranks;
  }
  if (whole.experts.count > 0) {
    part.experts.shared = Divided(whole.experts.shared, ranks, "columns of the shared expert");
    DivideExperts(types, rank, ranks, &part);
  }
  return part;
}

kv::HeadRange HeadsOf(const ModelConfig& part) {
  if (part.shard.whole == nullptr) return {0, part.q_heads, 0, part.kv_heads};
  return HeadsOfRank(part, part.shard.rank);
}

kv::HeadRange HeadsOfRank(const ModelConfig& part, int rank) {
  const Shard shard = {rank, part.shard.ranks, part.shard.whole};
  const Range q = PartOfRank(shard.whole->q_heads, shard);
  const Range kv = PartOfRank(shard.whole->kv_heads, shard);
  return {q.begin, q.count, kv.begin, kv.count};
}

VocabularyPart VocabularyOf(const ModelConfig& config) {
  const auto& [rank, ranks, whole] = config.shard;
  const int64_t padded = (config.vocab + ranks - 1) / ranks;
  const int64_t first = std::min(config.vocab, rank * padded);
  return {first, std::min(padded, config.vocab - first), padded};
}

TensorPart PartOf(const ModelConfig& config, const std::string& name, int64_t rows, int64_t cols) {
  TensorPart part = {{{0, rows}}, {{0, cols}}, rows, cols, false};
  if (config.shard.whole == nullptr) return part;
  const ModelConfig& whole = *config.shard.whole;
  const Shard& shard = config.shard;
  const std::string_view module = ModuleOf(name);
  const bool expert = name.find(".experts.") != name.npos;
  if (expert && config.experts.own.count > 0) return part;
  const bool shared = name.find("." + whole.experts.shared_module + ".") != name.npos;
  const int64_t intermediate = expert   ? whole.experts.intermediate
                               : shared ? whole.experts.shared
                                        : whole.intermediate;
  const Range width = PartOfRank(intermediate, shard);
  const Range queries = Times(PartOfRank(whole.q_heads, shard), whole.head_dim);
  const Range keys = Times(PartOfRank(whole.kv_heads, shard), whole.head_dim);
  const auto divide_rows = [&](int64_t whole_rows, Ranges ranges) {
    part.whole_rows = whole_rows;
    part.rows = std::move(ranges);
  };
  // A bias is a vector, which has no columns to divide.
  const auto divide_cols = [&](int64_t whole_cols, Ranges ranges) {
    if (name.ends_with(".bias")) {
      part.zero = shard.rank != 0;
      return;
    }
    part.whole_cols = whole_cols;
    part.cols = std::move(ranges);
  };
  if (name.find(".linear_attn.") != name.npos) {
    const ops::GatedDeltaShape& delta = whole.delta;
    const Range heads = PartOfRank(delta.key_heads, shard);
    const int64_t group = delta.value_heads / delta.key_heads;
    Ranges values = {Times(heads, group)};
    if (delta.tiled) {  // those of a key head are key_heads apart
      values.clear();
      for (int64_t i = 0; i < group; ++i) values.push_back(Behind(heads, i * delta.key_heads));
    }
    const Ranges wide = Times(values, delta.value_dim);
    const Range keys_of_heads = Times(heads, delta.key_dim);
    const int64_t all_keys = delta.key_heads * delta.key_dim;
    Ranges channels = {keys_of_heads, Behind(keys_of_heads, all_keys)};
    for (const Range& range : wide) channels.push_back(Behind(range, 2 * all_keys));
    if (module == "in_proj_qkv") {
      divide_rows(delta.channels(), channels);
    } else if (module == "conv1d") {
      divide_rows(delta.channels() * delta.taps, Times(channels, delta.taps));
    } else if (module == "in_proj_z") {
      divide_rows(delta.width(), wide);
    } else if (module == "out_proj") {
      divide_cols(delta.width(), wide);
    } else if (module == "in_proj_a" || module == "in_proj_b" || module == "A_log" ||
               module == "dt_bias") {
      divide_rows(delta.value_heads, values);
    }
  } else if (module == "q_proj") {
    // With an output gate, its rows are behind the queries' (WeightTypes::RowsOf).
    divide_rows(whole.q_width(), {queries});
    if (whole.output_gate) {
      divide_rows(2 * whole.q_width(), {queries, Behind(queries, whole.q_width())});
    }
  } else if (module == "k_proj" || module == "v_proj") {
    divide_rows(whole.kv_width(), {keys});
  } else if (module == "qkv_proj") {
    divide_rows(
        whole.q_width() + 2 * whole.kv_width(),
        {queries, Behind(keys, whole.q_width()), Behind(keys, whole.q_width() + whole.kv_width())});
  } else if (module == "o_proj" || module == "out_proj") {
    divide_cols(whole.q_width(), {queries});
  } else if (module == "sinks") {
    divide_rows(whole.q_heads, {PartOfRank(whole.q_heads, shard)});
  } else if (module == "gate_up_proj") {
    divide_rows(2 * intermediate, {width, Behind(width, intermediate)});
  } else if (module == "gate_proj" || module == ModuleOf(whole.up) || module == "fc1" ||
             (expert && (module == whole.experts.gate || module == whole.experts.up))) {
    divide_rows(intermediate, {width});
  } else if (module == ModuleOf(whole.down) || module == "fc2" ||
             (expert && module == whole.experts.down)) {
    divide_cols(intermediate, {width});
  } else if (module == "embed_tokens" || module == "lm_head") {
    const VocabularyPart vocabulary = VocabularyOf(config);
    divide_rows(config.vocab, {{vocabulary.first, vocabulary.rows}});
  }
  return part;
}

MatrixView TypeOfPart(const ModelConfig& config, const MatrixView& whole, const std::string& name,
                      const TensorPart& part) {
  const int64_t rows = Sum(part.rows), cols = Sum(part.cols);
  if (whole.format == nullptr) {
    return MatrixView::Of(static_cast<void*>(nullptr), whole.dtype, rows, cols);
  }
  const int64_t block = whole.format->values;
  if (std::ranges::all_of(part.cols, [&](const Range& range) {
        return range.begin % block == 0 && range.count % block == 0;
      })) {
    return MatrixView::OfBlocks(nullptr, *whole.format, rows, cols);
  }
  throw Unsupported(
      "tensor_parallel = {}: each rank would have {} columns of {}, which is {} in blocks of {}; "
      "use fewer ranks, or a type with smaller blocks",
      config.shard.ranks, cols, name, whole.format->name, block);
}

std::unique_ptr<WeightStore> ShardWeights(Device& device, const ModelConfig& config,
                                          std::unique_ptr<WeightStore> source, bool passing) {
  return std::make_unique<ShardedWeights>(device, config, std::move(source), passing);
}

}  // namespace litecache::model
