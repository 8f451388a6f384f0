#include "model/quantize_gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "base/block_format.h"
#include "base/error.h"
#include "base/join.h"
#include "io/checkpoint.h"
#include "io/generation_config.h"
#include "io/gguf_names.h"
#include "io/unfinished_directory.h"
#include "model/gguf_metadata.h"
#include "model/plain_matrices.h"
#include "model/weight_types.h"

namespace litecache::model {
namespace {

namespace fs = std::filesystem;

// Of what is in memory at a time.
constexpr int64_t kValuesAtATime = int64_t{1} << 24;

// Null: "none".
const BlockFormat* ParseBlocks(std::string_view text) {
  if (text == "none") return nullptr;
  std::vector<std::string_view> names;
  for (const auto& [name, format] : WritableFormats()) {
    if (name == text) return format;
    names.push_back(name);
  }
  throw InvalidArgument(
      "'{}' is not one of {}, which GGUF files have; other types need a directory", text,
      Join(names));
}

class GgufQuantizer {
 public:
  GgufQuantizer(const fs::path& model, const GgufOptions& options, ThreadPool& pool,
                const std::function<void(int64_t done, int64_t total)>& progress)
      : model_(model),
        options_(options),
        types_(ModuleTypes::Parse(options.types)),
        config_(ReadPlainConfig(model)),
        checkpoint_(std::make_shared<const io::Checkpoint>(model)),
        architecture_(GgufArchitecture(config_, model)),
        rope_factors_(GgufRopeFactors(config_)),
        pool_(pool),
        progress_(progress) {
    PlanMatrices();
    PlanTensors();
  }

  uint64_t bytes() const { return result_.bytes; }
  void Write(const fs::path& file);
  QuantizedModel Result() const { return result_; }

 private:
  struct Source {
    std::string name;  // Hugging Face's
    io::Checkpoint::Tensor tensor;
    const BlockFormat* from = nullptr;
    const BlockFormat* to = nullptr;
    int64_t rows = 0, cols = 0;  // a vector's values are rows, which may be permuted
    int64_t paired_heads = 0;    // io::Checkpoint::Tensor
    QuantizedKind* kind = nullptr;
    io::TensorWriter::Tensor output;
  };

  void PlanMatrices();
  void PlanTensors();
  void Plan(const std::string& name, std::string gguf_name);
  QuantizedKind* KindOf(const BlockFormat& format);
  std::vector<int32_t> EosIds() const;
  void WriteTensor(const Source& source, io::GgufFile& file);
  double WriteRow(const Source& source, int64_t row, std::span<float> values, std::byte* out,
                  double* squares) const;

  const fs::path& model_;
  const GgufOptions& options_;
  const ModuleTypes types_;
  const ModelConfig config_;
  const std::shared_ptr<const io::Checkpoint> checkpoint_;
  const std::string_view architecture_;
  const std::vector<float> rope_factors_;
  ThreadPool& pool_;
  const std::function<void(int64_t, int64_t)>& progress_;
  std::map<std::string, const BlockFormat*> matrices_;  // null: it stays
  std::vector<Source> sources_;
  QuantizedModel result_;
  uint64_t done_ = 0;
};

void GgufQuantizer::PlanMatrices() {
  ParseBlocks(types_.type);
  for (const auto& [module, type] : types_.modules) ParseBlocks(type);
  bool any = false;
  for (const LinearMatrix& matrix : QuantizableMatrices(config_, checkpoint_, types_)) {
    FindPlain(*checkpoint_, matrix);
    const BlockFormat* format = ParseBlocks(types_.Of(ModuleOf(matrix.tensor)));
    if (format != nullptr) format = Fitting(*format, matrix.cols);
    matrices_[matrix.tensor] = format;
    any = any || format != nullptr;
  }
  if (!any) {
    throw InvalidArgument("--type {}: no matrix of the model would be quantized", options_.types);
  }
  // Sources point to them.
  result_.kinds.reserve(WritableFormats().size());
}

void GgufQuantizer::PlanTensors() {
  result_.files = 1;
  for (const std::string& name : checkpoint_->TensorNames()) {
    // Old files have RoPE's frequencies, which follow from the config.
    if (name.ends_with(".rotary_emb.inv_freq")) continue;
    // Where GGUF has no output matrix, it is the embeddings.
    if (name == "lm_head.weight" && config_.tie_embeddings) continue;
    std::string gguf_name = io::GgufName(name);
    if (gguf_name.empty()) {
      throw Unsupported("{}: tensor '{}' has no name in GGUF; {}", model_.string(), name,
                        io::kWriteDirectory);
    }
    Plan(name, std::move(gguf_name));
  }
}

void GgufQuantizer::Plan(const std::string& name, std::string gguf_name) {
  Source source{.name = name, .tensor = checkpoint_->Find(name), .output = {}};
  const io::TensorInfo& info = *source.tensor.info;
  const auto found = matrices_.find(name);
  const bool is_matrix = found != matrices_.end();
  if (!PlainType(info) || info.shape.empty()) {
    throw Unsupported("{}: tensor '{}' is {}, but only BF16, F16 and F32 are written as GGUF; {}",
                      source.tensor.file->string(), name, info.ToString(), io::kWriteDirectory);
  }
  source.from = FindBlockFormat(info.dtype);
  source.to = info.shape.size() == 1 ? FindBlockFormat("F32") : source.from;
  if (is_matrix && found->second != nullptr) source.to = found->second;
  source.cols = info.shape.size() == 1 ? 1 : info.shape.back();
  source.rows = 1;
  for (const int64_t extent : info.shape) source.rows *= extent;
  source.rows /= source.cols;
  if (io::PairsHeads(architecture_)) {
    const std::string_view module = ModuleOf(name);
    if (module == "q_proj") source.paired_heads = config_.q_heads;
    if (module == "k_proj") source.paired_heads = config_.kv_heads;
  }
  const uint64_t bytes =
      static_cast<uint64_t>(source.rows * source.cols / source.to->values * source.to->bytes);
  source.output = {std::move(gguf_name), std::string(source.to->name), info.shape, bytes};
  result_.bytes_before += info.bytes();
  result_.bytes += bytes;
  if (source.to->quantized()) {
    const auto weights = static_cast<uint64_t>(source.rows * source.cols);
    source.kind = KindOf(*source.to);
    ++source.kind->matrices;
    source.kind->weights += weights;
    source.kind->bytes += bytes;
    result_.weights += weights;
  } else {
    result_.AddKept(name, info, is_matrix, bytes);
  }
  sources_.push_back(std::move(source));
}

QuantizedKind* GgufQuantizer::KindOf(const BlockFormat& format) {
  const auto& all = WritableFormats();
  const std::string_view name =
      std::ranges::find(all, &format, [](const auto& named) { return named.second; })->first;
  const auto found = std::ranges::find(result_.kinds, name, &QuantizedKind::type);
  if (found != result_.kinds.end()) return &*found;
  return &result_.kinds.emplace_back(QuantizedKind{.type = name, .group = format.values});
}

std::vector<int32_t> GgufQuantizer::EosIds() const {
  std::vector<int32_t> ids = io::GenerationConfig::FromModel(model_).eos_ids;
  for (const int32_t id : config_.eos_ids) {
    if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
  }
  return ids;
}

// Returns the squared error.
double GgufQuantizer::WriteRow(const Source& source, int64_t row, std::span<float> values,
                               std::byte* out, double* squares) const {
  const int64_t cols = source.cols;
  int64_t from = row;
  if (source.paired_heads != 0) {
    const int64_t height = source.rows / source.paired_heads, in_head = row % height;
    from = row - in_head + in_head / 2 + in_head % 2 * (height / 2);
  }
  const std::byte* data = source.tensor.data + from * cols * source.from->bytes;
  if (source.to == source.from) {
    std::memcpy(out, data, static_cast<size_t>(cols * source.from->bytes));
    return 0;
  }
  source.from->to_float(data, cols, values.data());
  if (source.kind == nullptr) {  // f32
    std::memcpy(out, values.data(), values.size_bytes());
    return 0;
  }
  const int64_t blocks = cols / source.to->values;
  source.to->from_float(values.data(), blocks, out);
  std::vector<float> rounded(values.size());
  source.to->to_float(out, blocks, rounded.data());
  double error = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double difference = static_cast<double>(rounded[i]) - static_cast<double>(values[i]);
    error += difference * difference;
    *squares += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  return error;
}

void GgufQuantizer::WriteTensor(const Source& source, io::GgufFile& file) {
  const int64_t row_bytes = source.cols / source.to->values * source.to->bytes;
  const int64_t part = std::min(source.rows, std::max<int64_t>(1, kValuesAtATime / source.cols));
  std::vector<std::byte> out(static_cast<size_t>(part * row_bytes));
  std::vector<std::pair<double, double>> errors(static_cast<size_t>(part));  // squares, error
  for (int64_t first = 0; first < source.rows; first += part) {
    const int64_t count = std::min(part, source.rows - first);
    pool_.ParallelFor(count, 8, [&](int64_t begin, int64_t end, int) {
      std::vector<float> values(static_cast<size_t>(source.cols));
      for (int64_t row = begin; row < end; ++row) {
        auto& [squares, error] = errors[static_cast<size_t>(row)];
        squares = 0;
        error = WriteRow(source, first + row, values, out.data() + row * row_bytes, &squares);
      }
    });
    for (int64_t row = 0; source.kind != nullptr && row < count; ++row) {
      const auto& [squares, error] = errors[static_cast<size_t>(row)];
      if (!std::isfinite(squares)) {
        throw FileError("{}: tensor '{}' has a value that is not finite",
                        source.tensor.file->string(), source.name);
      }
      source.kind->squares += squares;
      source.kind->squared_error += error;
    }
    file.Write(source.output.name, static_cast<uint64_t>(first * row_bytes),
               std::span(out).first(static_cast<size_t>(count * row_bytes)));
    done_ += static_cast<uint64_t>(count * source.cols * source.from->bytes);
    if (progress_) {
      progress_(static_cast<int64_t>(done_), static_cast<int64_t>(result_.bytes_before));
    }
  }
}

void GgufQuantizer::Write(const fs::path& path) {
  const BlockFormat* type = ParseBlocks(types_.type);
  const std::vector<int32_t> eos_ids = EosIds();
  io::GgufMetadata metadata;
  AddGgufConfig(config_, model_, type == nullptr ? "" : type->name, &metadata);
  if (options_.add_tokenizer) options_.add_tokenizer(config_, eos_ids, &metadata);
  std::vector<io::TensorWriter::Tensor> tensors;
  for (const Source& source : sources_) tensors.push_back(source.output);
  const auto factors = std::as_bytes(std::span(rope_factors_));
  if (!factors.empty()) {
    tensors.push_back(
        {kRopeFactors, "F32", {static_cast<int64_t>(rope_factors_.size())}, factors.size()});
  }
  io::GgufFile file(path, metadata, tensors);
  if (!factors.empty()) file.Write(kRopeFactors, 0, factors);
  // The file is as long as it will be: what GGUF cannot say is refused before the long work.
  CheckGgufConfig(path, config_, eos_ids, model_);
  if (options_.check_tokenizer) options_.check_tokenizer(path);
  for (const Source& source : sources_) WriteTensor(source, file);
  file.Close();
}

}  // namespace

QuantizedModel QuantizeGguf(const fs::path& model, const fs::path& output,
                            const GgufOptions& options, ThreadPool& pool,
                            const std::function<void(int64_t done, int64_t total)>& progress) {
  GgufQuantizer quantizer(model, options, pool, progress);
  io::UnfinishedDirectory directory(output, /*file=*/true);
  directory.RequireSpace(quantizer.bytes());
  quantizer.Write(directory.file());
  directory.Finish();
  return quantizer.Result();
}

}  // namespace litecache::model
