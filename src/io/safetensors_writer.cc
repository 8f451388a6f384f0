#include "io/safetensors_writer.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/error.h"
#include "io/file.h"

namespace litecache::io {
namespace {

const char* FormatName(DType dtype) {
  LC_CHECK(dtype != DType::kI32);
  return dtype == DType::kF32 ? "F32" : dtype == DType::kF16 ? "F16" : "BF16";
}

template <typename T>
void Append(const std::string& name, DType dtype, std::span<const float> values,
            std::string* data) {
  for (const float value : values) {
    const T stored(value);
    if (!std::isfinite(static_cast<float>(stored))) {
      throw InvalidArgument("tensor '{}': {} cannot be written as {}", name, value, Name(dtype));
    }
    data->append(reinterpret_cast<const char*>(&stored), sizeof(stored));
  }
}

// What precedes the tensors of a file: the length of the header, and the header, padded to a
// multiple of 8 bytes.
template <typename Json>
std::string HeaderBytes(const Json& header) {
  // Broken UTF-8 is replaced rather than an error: such a text may be a corpus's file name.
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes += static_cast<char>((static_cast<uint64_t>(text.size()) >> (8 * i)) & 0xff);
  }
  return bytes + text;
}

}  // namespace

void SafetensorsWriter::Add(const std::string& name, DType dtype, const std::vector<int64_t>& shape,
                            std::span<const float> values) {
  size_t count = 1;
  for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
  LC_CHECK(count == values.size(), "tensor '{}': {} values for a shape of {}", name, values.size(),
           count);
  LC_CHECK(!tensors_.contains(name), "tensor '{}' is added twice", name);
  const size_t begin = data_.size();
  switch (dtype) {
    case DType::kF16:
      Append<f16>(name, dtype, values, &data_);
      break;
    case DType::kBF16:
      Append<bf16>(name, dtype, values, &data_);
      break;
    default:
      Append<float>(name, dtype, values, &data_);
      break;
  }
  tensors_[name] = {dtype, shape, begin, data_.size()};
}

std::string SafetensorsWriter::Bytes() const {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata_.empty()) header["__metadata__"] = metadata_;
  for (const auto& [name, tensor] : tensors_) {
    header[name] = {{"dtype", FormatName(tensor.dtype)},
                    {"shape", tensor.shape},
                    {"data_offsets", {tensor.begin, tensor.end}}};
  }
  return HeaderBytes(header) + data_;
}

void SafetensorsWriter::Write(const std::filesystem::path& path) const {
  WriteFileAtomically(path, Bytes());
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, std::vector<Tensor> tensors)
    : TensorWriter(path) {
  // Values of 8 bytes come first, and so on: every tensor is aligned.
  const auto bytes_of_value = [](const Tensor& tensor) {
    uint64_t count = 1;
    for (const int64_t extent : tensor.shape) count *= static_cast<uint64_t>(extent);
    return count == 0 ? 0 : tensor.bytes / count;
  };
  std::ranges::sort(tensors, [&](const Tensor& a, const Tensor& b) {
    return std::tuple(bytes_of_value(b), a.name) < std::tuple(bytes_of_value(a), b.name);
  });
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  uint64_t end = 0;
  for (const Tensor& tensor : tensors) {
    Place(tensor, end);
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {end, end + tensor.bytes}}};
    end += tensor.bytes;
  }
  const std::string text = HeaderBytes(header);
  WriteFront(std::as_bytes(std::span(text)));
}

}  // namespace litecache::io
