#include "capi/status.h"

#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

#include "base/error.h"
#include "base/logging.h"
#include "io/json_parser.h"
#include "litecache/engine.h"
#include "server/api/error.h"

namespace litecache::capi {
namespace {

thread_local std::string last_error;

// A library writes nothing to standard output, and to standard error only what is wrong.
[[maybe_unused]] const bool log_is_quiet = [] {
  InitLogging("warn");
  return true;
}();

litecache_status Keep(litecache_status status, const char* message) noexcept {
  try {
    last_error = message;
  } catch (const std::bad_alloc&) {
    last_error.clear();
  }
  return status;
}

// The text of an option's value, as on the command line.
std::string OptionText(const std::string& name, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "on" : "off";
  if (value.is_number()) return server::Dump(value);
  throw InvalidArgument("option {}: {} is neither a text, nor a number, nor true or false", name,
                        server::Excerpt(value));
}

}  // namespace

litecache_status KeepError() noexcept {
  try {
    throw;
  } catch (const InvalidArgument& error) {
    return Keep(LITECACHE_INVALID_ARGUMENT, error.what());
  } catch (const FileError& error) {
    return Keep(LITECACHE_FILE_ERROR, error.what());
  } catch (const Unsupported& error) {
    return Keep(LITECACHE_UNSUPPORTED, error.what());
  } catch (const CapacityError& error) {
    return Keep(LITECACHE_CAPACITY_ERROR, error.what());
  } catch (const server::ApiError& error) {
    return Keep(error.status() < 500 ? LITECACHE_INVALID_ARGUMENT : LITECACHE_ERROR, error.what());
  } catch (const std::bad_alloc&) {
    return Keep(LITECACHE_ERROR, "out of memory");
  } catch (const std::exception& error) {
    return Keep(LITECACHE_ERROR, error.what());
  } catch (...) {
    return Keep(LITECACHE_ERROR, "unknown error");
  }
}

void CheckPointer(const void* pointer, const char* name) {
  if (pointer == nullptr) throw InvalidArgument("{} is a null pointer", name);
}

char* CopyText(std::string_view text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

char* CopyJson(const Json& value) { return CopyText(server::Dump(value)); }

Json ParseObject(const char* text, const char* what) {
  if (text == nullptr) return Json::object();
  auto limits = io::JsonLimits::OfRequest();
  try {
    Json value = io::ParseLimitedJson<Json>(text, &limits);
    if (value.is_object()) return value;
  } catch (const io::JsonError& error) {
    throw InvalidArgument("{}: {}", what, error.what());
  }
  throw InvalidArgument("{}: a JSON object is expected", what);
}

template <class S>
void SetOptions(const Json& values, std::span<const Option<S>> table, S* options) {
  for (const auto& [name, value] : values.items()) {
    const Option<S>& option = FindOption(table, name);
    option.set(*options, OptionText(name, value), option.NameIn(OptionNames::kMembers));
  }
}

template void SetOptions(const Json&, std::span<const Option<EngineOptions>>, EngineOptions*);
template void SetOptions(const Json&, std::span<const Option<KvOptions>>, KvOptions*);

}  // namespace litecache::capi

const char* litecache_error() { return litecache::capi::last_error.c_str(); }
void litecache_free(void* memory) { std::free(memory); }
