#include "io/gguf.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/block_format.h"
#include "base/error.h"
#include "base/printable.h"
#include "io/gguf_types.h"
#include "io/other_formats.h"

namespace litecache::io {
namespace {

using nlohmann::json;

// Far above any model: the largest have some 1,000 tensors and 100 keys. Each costs the reader a
// hundred bytes for the dozen that it takes in the file.
constexpr uint64_t kMaxKeys = 1 << 16, kMaxTensors = 1 << 16;
constexpr uint64_t kMaxKeyBytes = 1 << 16;   // of the format
constexpr uint64_t kMaxNameBytes = 1 << 10;  // llama.cpp allows 64
constexpr uint64_t kMaxDimensions = 4;       // of ggml
constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr int kMaxNesting = 4;
constexpr const char* kAlignmentKey = "general.alignment";

// In the order of their numbers.
constexpr std::array<std::pair<std::string_view, uint64_t>, 13> kTypes = {{
    {"UINT8", 1},
    {"INT8", 1},
    {"UINT16", 2},
    {"INT16", 2},
    {"UINT32", 4},
    {"INT32", 4},
    {"FLOAT32", 4},
    {"BOOL", 1},
    {"STRING", 0},
    {"ARRAY", 0},
    {"UINT64", 8},
    {"INT64", 8},
    {"FLOAT64", 8},
}};

// The number as a person would write it: 1e-05, not 9.999999747e-06.
double Shortest(float value) {
  return std::isfinite(value) ? std::stod(fmt::format("{}", value)) : static_cast<double>(value);
}

// Reads from the front of a file. Errors name the file, and what was being read.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  size_t offset() const { return offset_; }
  // What is being read, for messages: "key 'a.b'".
  void SetPlace(std::string place) { place_ = std::move(place); }

  [[noreturn]] void Fail(const std::string& reason) const {
    throw FileError("{}: {}{}{}", name_, place_, place_.empty() ? "" : ": ", reason);
  }

  std::span<const std::byte> Take(uint64_t count) {
    if (count > bytes_.size() - offset_) {
      Fail(fmt::format("{} bytes at {} go beyond the file's end at {}: is the download complete?",
                       count, offset_, bytes_.size()));
    }
    const auto taken = bytes_.subspan(offset_, static_cast<size_t>(count));
    offset_ += taken.size();
    return taken;
  }

  template <typename T>
  T Number() {
    T value;
    std::memcpy(&value, Take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::string_view Text(uint64_t longest = std::numeric_limits<uint64_t>::max()) {
    const auto length = Number<uint64_t>();
    if (length > longest) {
      Fail(fmt::format("a text of {} bytes, at most {} are allowed", length, longest));
    }
    const auto bytes = Take(length);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  uint32_t TypeNumber() {
    const auto type = Number<uint32_t>();
    if (type >= kTypes.size()) Fail(fmt::format("unknown type {}", type));
    return type;
  }

  GgufArray Array(int depth = 1) {
    if (depth > kMaxNesting) Fail(fmt::format("arrays nested more than {} deep", kMaxNesting));
    GgufArray array;
    array.type = TypeNumber();
    array.count = Number<uint64_t>();
    const size_t begin = offset_;
    if (const uint64_t size = kTypes[array.type].second; size > 0) {
      if (array.count > (bytes_.size() - offset_) / size) {
        Fail(
            fmt::format("an array of {} {} goes beyond the file's end at {}: is the download "
                        "complete?",
                        array.count, kTypes[array.type].first, bytes_.size()));
      }
      Take(array.count * size);
    } else {
      // Every element takes bytes, so that a count that lies ends at the file's end.
      for (uint64_t i = 0; i < array.count; ++i) {
        if (array.type == kString) {
          Text();
        } else {
          Array(depth + 1);
        }
      }
    }
    array.bytes = bytes_.subspan(begin, offset_ - begin);
    return array;
  }

  // A value that is not an array.
  json Value(uint32_t type) {
    switch (type) {
      case kU8:
        return Number<uint8_t>();
      case kI8:
        return Number<int8_t>();
      case kU16:
        return Number<uint16_t>();
      case kI16:
        return Number<int16_t>();
      case kU32:
        return Number<uint32_t>();
      case kI32:
        return Number<int32_t>();
      case kU64:
        return Number<uint64_t>();
      case kI64:
        return Number<int64_t>();
      case kF32:
        return Shortest(Number<float>());
      case kF64:
        return Number<double>();
      case kBool:
        return Number<uint8_t>() != 0;
      default:
        return std::string(Text());
    }
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& name_;
  std::string place_;
  size_t offset_ = 0;
};

void CheckVersion(Reader& reader) {
  const auto version = reader.Number<uint32_t>();
  if (version == 2 || version == 3) return;
  if (const uint32_t swapped = __builtin_bswap32(version); swapped <= 3 && swapped > 0) {
    reader.Fail("is big-endian GGUF; convert the model again, without --bigendian");
  }
  reader.Fail(
      fmt::format("is GGUF version {}, and versions 2 and 3 are read; convert the model again "
                  "with a recent llama.cpp",
                  version));
}

void ReadMetadata(Reader& reader, uint64_t count, GgufHeader* header) {
  for (uint64_t i = 0; i < count; ++i) {
    reader.SetPlace(fmt::format("key {} of {}", i + 1, count));
    const std::string key(reader.Text(kMaxKeyBytes));
    reader.SetPlace(fmt::format("key '{}'", Printable(key, 100)));
    if (header->metadata.contains(key)) reader.Fail("is there twice");
    const uint32_t type = reader.TypeNumber();
    if (type == kArray) {
      const GgufArray array = reader.Array();
      header->metadata[key] = fmt::format("[{} x {}]", array.count, kTypes[array.type].first);
      header->arrays.emplace(key, array);
    } else {
      header->metadata[key] = reader.Value(type);
    }
  }
}

struct TableEntry {
  const std::string* name = nullptr;
  TensorInfo* info = nullptr;
};

// One entry of the table. Its range counts from the start of the data, which follows the table.
TensorInfo ReadTensor(Reader& reader, const std::string& name, const std::string& file) {
  TensorInfo info;
  const auto dimensions = reader.Number<uint32_t>();
  if (dimensions < 1 || dimensions > kMaxDimensions) {
    reader.Fail(fmt::format("{} dimensions, from 1 to {} are allowed", dimensions, kMaxDimensions));
  }
  uint64_t values = 1;
  for (uint32_t i = 0; i < dimensions; ++i) {
    const auto extent = reader.Number<uint64_t>();
    if (extent == 0 || extent > static_cast<uint64_t>(INT64_MAX) ||
        __builtin_mul_overflow(values, extent, &values)) {
      reader.Fail(
          fmt::format("dimension {} is {}: more or fewer values than there can be", i + 1, extent));
    }
    info.shape.push_back(static_cast<int64_t>(extent));
  }
  const auto type = reader.Number<uint32_t>();
  const BlockFormat* format = FindBlockFormat(type);
  if (format == nullptr) {
    throw Unsupported("{}: tensor '{}' has the type {}, which LiteCache does not know", file, name,
                      type);
  }
  info.dtype = format->name;
  if (info.shape.front() % format->values != 0) {
    reader.Fail(fmt::format("rows of {} values do not fill blocks of {}, as {} has them",
                            info.shape.front(), format->values, format->name));
  }
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(values / static_cast<uint64_t>(format->values),
                             static_cast<uint64_t>(format->bytes), &bytes)) {
    reader.Fail("more bytes than there can be");
  }
  std::ranges::reverse(info.shape);
  info.begin = reader.Number<uint64_t>();
  if (__builtin_add_overflow(info.begin, bytes, &info.end)) {
    reader.Fail(fmt::format("its {} bytes at {} end nowhere", bytes, info.begin));
  }
  return info;
}

void PlaceTensors(std::map<std::string, TensorInfo>* tensors, uint64_t front, uint64_t file_size,
                  uint64_t alignment, const std::string& file) {
  const uint64_t data_begin = std::min((front + alignment - 1) / alignment * alignment, file_size);
  std::vector<std::pair<const std::string*, const TensorInfo*>> order;
  for (auto& [name, info] : *tensors) {
    if (info.begin % alignment != 0) {
      throw FileError("{}: tensor '{}' begins at {}, not at a multiple of {} = {}", file, name,
                      info.begin, kAlignmentKey, alignment);
    }
    if (info.end > file_size - data_begin) {
      throw FileError(
          "{}: tensor '{}' ({}) ends at {} of the data, which has {} bytes: is the download "
          "complete?",
          file, name, info.ToString(), info.end, file_size - data_begin);
    }
    info.begin += data_begin;
    info.end += data_begin;
    order.emplace_back(&name, &info);
  }
  std::ranges::sort(order, {}, [](const auto& entry) { return entry.second->begin; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i].second->begin < order[i - 1].second->end) {
      throw FileError("{}: tensors '{}' and '{}' overlap", file, *order[i - 1].first,
                      *order[i].first);
    }
  }
}

template <typename T, typename Element>
std::vector<T> Elements(const GgufArray& array) {
  std::vector<T> values(static_cast<size_t>(array.count));
  for (size_t i = 0; i < values.size(); ++i) {
    Element element;
    std::memcpy(&element, array.bytes.data() + i * sizeof(Element), sizeof(Element));
    values[i] = static_cast<T>(+element);  // an int8 is a number, not a character
  }
  return values;
}

}  // namespace

GgufHeader ParseGguf(std::span<const std::byte> file, const std::string& name) {
  static_assert(std::endian::native == std::endian::little);
  RefuseLfsPointer({reinterpret_cast<const char*>(file.data()), file.size()}, name);
  Reader reader(file, name);
  const auto magic = reader.Take(kGgufMagic.size());
  if (std::memcmp(magic.data(), kGgufMagic.data(), kGgufMagic.size()) != 0) {
    reader.Fail("is not GGUF: it does not begin with these letters");
  }
  CheckVersion(reader);
  const auto tensors = reader.Number<uint64_t>();
  const auto keys = reader.Number<uint64_t>();
  if (tensors > kMaxTensors || keys > kMaxKeys) {
    reader.Fail(fmt::format("claims {} tensors and {} keys, at most {} and {} are allowed", tensors,
                            keys, kMaxTensors, kMaxKeys));
  }
  GgufHeader header;
  ReadMetadata(reader, keys, &header);
  const auto alignment =
      static_cast<uint64_t>(JsonFields(header.metadata, name)
                                .Int(kAlignmentKey, 8, static_cast<int64_t>(kMaxAlignment))
                                .value_or(kGgufAlignment));
  if (!std::has_single_bit(alignment)) {
    throw FileError("{}: key '{}' = {} is not a power of two", name, kAlignmentKey, alignment);
  }
  for (uint64_t i = 0; i < tensors; ++i) {
    reader.SetPlace(fmt::format("tensor {} of {}", i + 1, tensors));
    const std::string tensor(reader.Text(kMaxNameBytes));
    const std::string shown = Printable(tensor, 100);
    reader.SetPlace(fmt::format("tensor '{}'", shown));
    if (!header.tensors.emplace(tensor, ReadTensor(reader, shown, name)).second) {
      reader.Fail("is there twice");
    }
  }
  PlaceTensors(&header.tensors, reader.offset(), file.size(), alignment, name);
  return header;
}

Gguf::Gguf(const std::filesystem::path& path)
    : TensorFile(path),
      header_(ParseGguf(file_.bytes(), path.string())),
      fields_(header_.metadata, path.string()) {
  tensors_ = std::exchange(header_.tensors, {});
}

const GgufArray& Gguf::Array(const std::string& key) const {
  const auto found = header_.arrays.find(key);
  if (found == header_.arrays.end()) {
    if (fields_.Has(key)) fields_.Fail(key, "must be an array");
    throw FileError("{}: key '{}' is missing", fields_.name(), key);
  }
  return found->second;
}

std::vector<std::string_view> Gguf::Strings(const std::string& key) const {
  const GgufArray& array = Array(key);
  if (array.type != kString) fields_.Fail(key, "must be an array of strings");
  std::vector<std::string_view> texts;
  texts.reserve(static_cast<size_t>(array.count));
  Reader reader(array.bytes, fields_.name());
  for (uint64_t i = 0; i < array.count; ++i) texts.push_back(reader.Text());
  return texts;
}

std::vector<int64_t> Gguf::Integers(const std::string& key) const {
  const GgufArray& array = Array(key);
  switch (array.type) {
    case kU8:
    case kBool:
      return Elements<int64_t, uint8_t>(array);
    case kI8:
      return Elements<int64_t, int8_t>(array);
    case kU16:
      return Elements<int64_t, uint16_t>(array);
    case kI16:
      return Elements<int64_t, int16_t>(array);
    case kU32:
      return Elements<int64_t, uint32_t>(array);
    case kI32:
      return Elements<int64_t, int32_t>(array);
    case kI64:
      return Elements<int64_t, int64_t>(array);
    default:
      fields_.Fail(key, "must be an array of integers");
  }
}

std::vector<float> Gguf::Floats(const std::string& key) const {
  const GgufArray& array = Array(key);
  if (array.type == kF32) return Elements<float, float>(array);
  if (array.type == kF64) return Elements<float, double>(array);
  fields_.Fail(key, "must be an array of floats");
}

bool IsGguf(const std::filesystem::path& model) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(model, ignored);
}

}  // namespace litecache::io
