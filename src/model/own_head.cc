#include "model/own_head.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <system_error>
#include <vector>

#include "base/block_format.h"
#include "io/checkpoint.h"

namespace litecache::model {
namespace {

// A head that was trained apart from the embeddings differs from them in all rows; files with both,
// which are mostly alike, are not read as a whole for it.
constexpr int64_t kComparedRows = 256;

io::Checkpoint::Tensor FindMatrix(const io::Checkpoint& checkpoint,
                                  std::initializer_list<const char*> prefixes, const char* name) {
  for (const char* prefix : prefixes) {
    const auto tensor = checkpoint.Find(std::string(prefix) + name);
    if (tensor.info == nullptr) continue;
    const std::string& dtype = tensor.info->dtype;
    const bool numbers = dtype == "BF16" || dtype == "F16" || dtype == "F32";
    return numbers && tensor.info->shape.size() == 2 ? tensor : io::Checkpoint::Tensor();
  }
  return {};
}

std::vector<float> Row(const io::Checkpoint::Tensor& tensor, int64_t row) {
  const BlockFormat& format = *FindBlockFormat(tensor.info->dtype);
  const int64_t width = tensor.info->shape[1];
  std::vector<float> values(static_cast<size_t>(width));
  format.to_float(tensor.data + static_cast<size_t>(row * width) * format.bytes, width,
                  values.data());
  return values;
}

}  // namespace

bool HasHeadOfItsOwn(const std::filesystem::path& directory) {
  std::error_code ignored;
  if (!std::filesystem::exists(directory / "model.safetensors", ignored) &&
      !std::filesystem::exists(directory / "model.safetensors.index.json", ignored)) {
    return false;
  }
  const io::Checkpoint checkpoint(directory);
  const auto head = FindMatrix(checkpoint, {"", "language_model."}, "lm_head.weight");
  const auto embeddings = FindMatrix(checkpoint,
                                     {"model.", "", "language_model.model.",
                                      "model.language_model.", "model.decoder.", "decoder."},
                                     "embed_tokens.weight");
  if (head.info == nullptr || embeddings.info == nullptr) return false;
  if (head.info->shape != embeddings.info->shape) return false;
  const int64_t rows = head.info->shape[0], compared = std::min(rows, kComparedRows);
  for (int64_t i = 0; i < compared; ++i) {
    const int64_t row = i * rows / compared;
    if (Row(head, row) != Row(embeddings, row)) return true;
  }
  return false;
}

}  // namespace litecache::model
