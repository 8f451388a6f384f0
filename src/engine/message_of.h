// The message of a stored exception.
#pragma once

#include <exception>
#include <string>

namespace litecache::engine {

inline std::string MessageOf(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "unknown error";
  }
}

}  // namespace litecache::engine
