#include "io/safetensors.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/join.h"
#include "base/units.h"
#include "io/json.h"
#include "io/other_formats.h"

namespace litecache::io {
namespace {

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
// The limit of the format's reference implementation.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr const char* kMetadata = "__metadata__";

// Every dtype of the format, so that a file with tensors that are not needed still opens.
std::optional<uint64_t> BitsOf(std::string_view dtype) {
  static constexpr std::array<std::pair<std::string_view, uint64_t>, 21> kBits = {{
      {"BOOL", 8},        {"U8", 8},   {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8},
      {"F8_E8M0", 8},     {"I16", 16}, {"U16", 16}, {"F16", 16},    {"BF16", 16},
      {"I32", 32},        {"U32", 32}, {"F32", 32}, {"F64", 64},    {"I64", 64},
      {"U64", 64},        {"C64", 64}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6},
      {"F8_E4M3FNUZ", 8},
  }};
  for (const auto& [name, bits] : kBits) {
    if (name == dtype) return bits;
  }
  return std::nullopt;
}

uint64_t Unsigned(const json& value, const std::string& name, const std::string& tensor,
                  const char* what) {
  if (!value.is_number_unsigned()) {
    throw FileError("{}: tensor '{}': {} {} is not a non-negative integer", name, tensor, what,
                    Excerpt(value));
  }
  return value.get<uint64_t>();
}

TensorInfo ParseTensor(const json& entry, const std::string& tensor, uint64_t data_begin,
                       uint64_t file_size, const std::string& name) {
  const auto fail = [&]<typename... Args>(fmt::format_string<Args...> format, Args&&... args) {
    throw FileError("{}: tensor '{}': {}", name, tensor,
                    fmt::format(format, std::forward<Args>(args)...));
  };
  if (!entry.is_object()) fail("its header entry is {}, not an object", Excerpt(entry));
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!entry.contains(key)) fail("its header entry has no '{}'", key);
  }
  TensorInfo info;
  if (!entry["dtype"].is_string()) fail("dtype is {}, not a string", Excerpt(entry["dtype"]));
  info.dtype = entry["dtype"].get<std::string>();
  const std::optional<uint64_t> element_bits = BitsOf(info.dtype);
  if (!element_bits) fail("unknown dtype {}", Excerpt(entry["dtype"]));

  const json& shape = entry["shape"];
  if (!shape.is_array()) fail("shape is {}, not a list", Excerpt(shape));
  uint64_t bits = *element_bits;
  bool overflow = false;
  for (const json& item : shape) {
    const uint64_t extent = Unsigned(item, name, tensor, "shape entry");
    overflow = overflow || extent > static_cast<uint64_t>(INT64_MAX) ||
               __builtin_mul_overflow(bits, extent, &bits);
    info.shape.push_back(static_cast<int64_t>(extent));
  }
  if (overflow) fail("shape {} holds more elements than can be counted", Excerpt(shape));
  if (bits % 8 != 0) fail("shape {} of {} does not fill whole bytes", Excerpt(shape), info.dtype);

  const json& offsets = entry["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2) {
    fail("data_offsets is {}, not [begin, end]", Excerpt(offsets));
  }
  const uint64_t begin = Unsigned(offsets[0], name, tensor, "data offset");
  const uint64_t end = Unsigned(offsets[1], name, tensor, "data offset");
  if (begin > end || end > file_size - data_begin) {
    fail("data_offsets [{}, {}] lie outside the file's {} bytes of data{}", begin, end,
         file_size - data_begin, end > begin ? "; is the file truncated?" : "");
  }
  if (end - begin != bits / 8) {
    fail("{} {} takes {} bytes, but data_offsets [{}, {}] hold {}", info.dtype, Excerpt(shape),
         bits / 8, begin, end, end - begin);
  }
  info.begin = data_begin + begin;
  info.end = data_begin + end;
  return info;
}

void CheckCoverage(const std::map<std::string, TensorInfo>& tensors, uint64_t data_begin,
                   uint64_t file_size, const std::string& name) {
  std::vector<std::pair<const std::string*, const TensorInfo*>> order;
  order.reserve(tensors.size());
  for (const auto& [tensor, info] : tensors) order.emplace_back(&tensor, &info);
  std::ranges::sort(order, {}, [](const auto& entry) {
    return std::pair(entry.second->begin, entry.second->end);
  });
  uint64_t covered = data_begin;
  const std::string* previous = nullptr;
  for (const auto& [tensor, info] : order) {
    if (info->begin < covered) {
      throw FileError("{}: tensors '{}' and '{}' overlap", name, *previous, *tensor);
    }
    if (info->begin > covered) {
      throw FileError("{}: {} bytes before tensor '{}' belong to no tensor", name,
                      info->begin - covered, *tensor);
    }
    covered = info->end;
    previous = tensor;
  }
  if (covered != file_size) {
    throw FileError("{}: {} bytes after the last tensor belong to no tensor", name,
                    file_size - covered);
  }
}

// The header, and where it ends.
std::pair<json, uint64_t> ReadHeader(std::span<const std::byte> head, uint64_t file_size,
                                     const std::string& name) {
  if (file_size < kLengthBytes || head.size() < kLengthBytes) {
    throw FileError("{}: {} bytes are too few for a safetensors file", name, file_size);
  }
  RefuseLfsPointer({reinterpret_cast<const char*>(head.data()), head.size()}, name);
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<uint64_t>(head[i]) << (8 * i);
  }
  if (length > kMaxHeaderBytes) {
    throw FileError(
        "{}: claims a header of {} bytes, at most {} are allowed; not a safetensors "
        "file?",
        name, length, kMaxHeaderBytes);
  }
  if (length > file_size - kLengthBytes || length > head.size() - kLengthBytes) {
    throw FileError("{}: truncated: claims a header of {} bytes, the file has {} bytes in all",
                    name, length, file_size);
  }
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + kLengthBytes,
                              static_cast<size_t>(length));
  json header = ParseJson(text, name + " (header)", DuplicateKeys::kReject);
  if (!header.is_object()) throw FileError("{}: its header is no JSON object", name);
  return {std::move(header), kLengthBytes + length};
}

}  // namespace

std::string TensorInfo::ToString() const { return fmt::format("{} [{}]", dtype, Join(shape)); }

std::map<std::string, TensorInfo> ParseSafetensors(std::span<const std::byte> head,
                                                   uint64_t file_size, const std::string& name) {
  const auto [header, data_begin] = ReadHeader(head, file_size, name);
  std::map<std::string, TensorInfo> tensors;
  for (const auto& [tensor, entry] : header.items()) {
    if (tensor == kMetadata) continue;
    tensors.emplace(tensor, ParseTensor(entry, tensor, data_begin, file_size, name));
  }
  CheckCoverage(tensors, data_begin, file_size, name);
  return tensors;
}

std::map<std::string, std::string> ParseSafetensorsMetadata(std::span<const std::byte> head,
                                                            uint64_t file_size,
                                                            const std::string& name) {
  const json header = ReadHeader(head, file_size, name).first;
  std::map<std::string, std::string> metadata;
  const auto found = header.find(kMetadata);
  if (found == header.end()) return metadata;
  if (!found->is_object()) {
    throw FileError("{}: {} is {}, not an object", name, kMetadata, Excerpt(*found));
  }
  for (const auto& [key, value] : found->items()) {
    if (!value.is_string()) {
      throw FileError("{}: {}: '{}' is {}, not a string", name, kMetadata, key, Excerpt(value));
    }
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

Safetensors::Safetensors(const std::filesystem::path& path) : TensorFile(path) {
  tensors_ = ParseSafetensors(file_.bytes(), file_.size(), path.string());
}

}  // namespace litecache::io
