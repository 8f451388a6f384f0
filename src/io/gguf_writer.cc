#include "io/gguf_writer.h"

#include <algorithm>

#include "base/block_format.h"
#include "base/error.h"

namespace litecache::io {
namespace {

constexpr uint32_t kVersion = 3;

template <typename T>
void AppendNumber(T value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendText(std::string_view text, std::string* bytes) {
  AppendNumber(static_cast<uint64_t>(text.size()), bytes);
  bytes->append(text);
}

uint64_t Aligned(uint64_t bytes) {
  return (bytes + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment;
}

}  // namespace

void GgufMetadata::AddKey(std::string_view key, GgufType type) {
  ++count_;
  AppendText(key, &bytes_);
  AppendNumber<uint32_t>(type, &bytes_);
}

void GgufMetadata::AddArray(std::string_view key, GgufType type, size_t count) {
  AddKey(key, kArray);
  AppendNumber<uint32_t>(type, &bytes_);
  AppendNumber(static_cast<uint64_t>(count), &bytes_);
}

void GgufMetadata::AddText(std::string_view key, std::string_view value) {
  AddKey(key, kString);
  AppendText(value, &bytes_);
}

void GgufMetadata::AddInt(std::string_view key, int64_t value) {
  AddKey(key, kU32);
  AppendNumber(static_cast<uint32_t>(value), &bytes_);
}

void GgufMetadata::AddFloat(std::string_view key, double value) {
  AddKey(key, kF32);
  AppendNumber(static_cast<float>(value), &bytes_);
}

void GgufMetadata::AddBool(std::string_view key, bool value) {
  AddKey(key, kBool);
  AppendNumber<uint8_t>(value ? 1 : 0, &bytes_);
}

void GgufMetadata::AddTexts(std::string_view key, std::span<const std::string> values) {
  AddArray(key, kString, values.size());
  for (const std::string& value : values) AppendText(value, &bytes_);
}

void GgufMetadata::AddInts(std::string_view key, std::span<const int32_t> values) {
  AddArray(key, kI32, values.size());
  for (const int32_t value : values) AppendNumber(value, &bytes_);
}

void GgufMetadata::AddFloats(std::string_view key, std::span<const float> values) {
  AddArray(key, kF32, values.size());
  for (const float value : values) AppendNumber(value, &bytes_);
}

GgufFile::GgufFile(const std::filesystem::path& path, const GgufMetadata& metadata,
                   const std::vector<Tensor>& tensors)
    : TensorWriter(path) {
  std::string front(kGgufMagic);
  AppendNumber(kVersion, &front);
  AppendNumber(static_cast<uint64_t>(tensors.size()), &front);
  AppendNumber(metadata.count(), &front);
  front += metadata.bytes();
  uint64_t end = 0;
  for (const Tensor& tensor : tensors) {
    AppendText(tensor.name, &front);
    AppendNumber(static_cast<uint32_t>(tensor.shape.size()), &front);
    std::for_each(tensor.shape.rbegin(), tensor.shape.rend(),
                  [&](int64_t extent) { AppendNumber(static_cast<uint64_t>(extent), &front); });
    const BlockFormat* format = FindBlockFormat(tensor.dtype);
    LC_CHECK(format != nullptr, "tensor '{}': {}", tensor.name, tensor.dtype);
    AppendNumber(format->type, &front);
    AppendNumber(end, &front);
    Place(tensor, end);
    end = Aligned(end + tensor.bytes);
  }
  front.resize(Aligned(front.size()));
  WriteFront(std::as_bytes(std::span(front)));
  Extend(front.size() + end);
}

}  // namespace litecache::io
