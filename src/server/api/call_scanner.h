// A call as a JSON object, byte by byte.
#pragma once

#include <string>
#include <string_view>

namespace litecache::server {

// Reads {"name": NAME, "arguments": {...}}, in any order and with further fields, which are left
// out. Arguments may be called "parameters", and be a string of JSON.
class CallScanner {
 public:
  enum Status { kMore, kDone, kFailed };

  // name: that field's name; "": the only field has the function's name, and its value is the
  // arguments. Must outlive this.
  explicit CallScanner(std::string_view name) : name_field_(name) {}

  Status Add(char c);
  const std::string& name() const { return name_; }
  bool has_name() const { return has_name_; }
  // The end of the object is expected, or another field.
  bool after_value() const { return phase_ == kCommaOrEnd; }
  // Returns the arguments received since the last call.
  std::string TakeArguments();

 private:
  enum Phase { kOpen, kKeyOrEnd, kKey, kColon, kValue, kString, kNested, kBare, kCommaOrEnd };

  bool AddToString(char c);
  bool EndKey();
  void BeginValue(char c);
  bool EndValue();
  Status CommaOrEnd(char c);
  bool IsArguments() const;

  std::string_view name_field_;
  Phase phase_ = kOpen;
  bool escaped_ = false;
  bool in_string_ = false;
  int depth_ = 0;
  std::string key_, value_, name_, arguments_;
  bool has_name_ = false;
  bool has_arguments_ = false;
  bool streamed_ = false;  // arguments are emitted as they are written
};

}  // namespace litecache::server
