// Results on standard output; every write is checked.
#pragma once

#include <stdexcept>
#include <streambuf>
#include <string>
#include <string_view>

namespace litecache::cli {

// The reader of standard output has closed it (`litecache ... | head`): not an error, but no reason
// to continue.
class OutputClosed : public std::runtime_error {
 public:
  OutputClosed() : std::runtime_error("standard output was closed") {}
};

// Buffered. Write() and Flush() throw OutputClosed for a closed pipe and FileError for other
// failures (a full disk). The destructor writes nothing: after an error, unflushed output is
// dropped on purpose.
class Output {
 public:
  // Standard output.
  Output() = default;
  // The file at `path`, created or truncated; "" and "-" mean standard output. Throws FileError.
  explicit Output(const std::string& path);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  void Write(std::string_view text);
  void Flush();
  // Calls Flush() and, for a file, close: the last point at which a full disk can be reported.
  void Close();

 private:
  [[noreturn]] void Fail(int error) const;

  int descriptor_ = 1;
  std::string name_ = "standard output";
  std::string buffer_;
};

// An Output as the buffer of a std::ostream. With exceptions(badbit) set, the stream's functions
// pass on what the Output throws.
class OutputStreamBuffer : public std::streambuf {
 public:
  explicit OutputStreamBuffer(Output& output) : output_(output) {}

 protected:
  std::streamsize xsputn(const char* text, std::streamsize size) override;
  int_type overflow(int_type c) override;
  int sync() override;

 private:
  Output& output_;
};

}  // namespace litecache::cli
