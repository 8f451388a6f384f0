// One file of a model in GGUF, the format of llama.cpp: metadata by key, a table of tensors, and
// the tensors' bytes. Versions 2 and 3, little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "io/tensor_file.h"

namespace litecache::io {

// An array of the metadata, where it is in the file.
struct GgufArray {
  uint32_t type = 0;  // of its elements, GGUF's number
  uint64_t count = 0;
  std::span<const std::byte> bytes;  // of all elements
};

// The parsed front of a file; arrays refer to the bytes that were parsed.
struct GgufHeader {
  // An object with a value for each key. An array's value is a text that describes it, such as
  // "[49152 x STRING]": reading it as anything else fails with that.
  nlohmann::json metadata = nlohmann::json::object();
  std::map<std::string, GgufArray> arrays;
  // By the file's names. Shapes are [rows, columns], the reverse of the file's order, and the dtype
  // is that of BlockFormat.
  std::map<std::string, TensorInfo> tensors;
};

// Parses a whole file. Checks magic, version, counts, lengths, that keys and names are unique,
// tensor types, shapes without overflow, alignment, and that tensors are in the file without
// overlap. Texts may be any bytes. Throws FileError and, for tensor types without a known size,
// Unsupported; both start with `name` and say which key or tensor. Memory and time are linear in
// the file's front.
GgufHeader ParseGguf(std::span<const std::byte> file, const std::string& name);

class Gguf : public TensorFile {
 public:
  explicit Gguf(const std::filesystem::path& path);
  Gguf(const Gguf&) = delete;
  Gguf& operator=(const Gguf&) = delete;

  // The values that are not arrays. Errors are FileErrors that name the file and the key.
  const JsonFields& fields() const { return fields_; }
  bool HasArray(const std::string& key) const { return header_.arrays.contains(key); }
  // The elements of an array. Throws FileError where the key is missing or has another type, or
  // where a number does not fit. Integers() also takes truth values: 0 is false.
  std::vector<std::string_view> Strings(const std::string& key) const;
  std::vector<int64_t> Integers(const std::string& key) const;
  std::vector<float> Floats(const std::string& key) const;

 private:
  const GgufArray& Array(const std::string& key) const;

  GgufHeader header_;  // without its tensors
  JsonFields fields_;
};

// Whether a model's path (hub.h) is that of a GGUF file: the only kind of file that is a model.
bool IsGguf(const std::filesystem::path& model);

}  // namespace litecache::io
