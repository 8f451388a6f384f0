// How the functions of litecache/litecache.h report errors, and how they read and return JSON.
#pragma once

#include <string>
#include <string_view>

#include "litecache/litecache.h"
#include "litecache/options.h"
#include "server/api/json.h"

namespace litecache::capi {

using server::Json;

// Keeps the exception that is being handled as this thread's error, and returns its kind.
litecache_status KeepError() noexcept;

// Runs the body of a function; nothing that it throws leaves the library.
template <typename Body>
litecache_status Guarded(const Body& body) noexcept {
  try {
    body();
    return LITECACHE_OK;
  } catch (...) {
    return KeepError();
  }
}

// Throws InvalidArgument for a null pointer.
void CheckPointer(const void* pointer, const char* name);

// A copy for the caller to free.
char* CopyText(std::string_view text);
char* CopyJson(const Json& value);

// The object in a text; `text` null: an empty one. Throws InvalidArgument that names `what`.
Json ParseObject(const char* text, const char* what);

// Sets options from an object of names and values, each a string, a number, true or false. Throws
// InvalidArgument.
template <class S>
void SetOptions(const Json& values, std::span<const Option<S>> table, S* options);

}  // namespace litecache::capi
