// EXPECT_ERROR(statement, Type, "part", "part"...): it throws Type and the message has every part.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "base/error.h"

namespace litecache::testing {

template <typename Type, typename Body>
void ExpectError(Body&& body, std::initializer_list<std::string> parts, const char* file,
                 int line) {
  const ::testing::ScopedTrace trace(file, line, "EXPECT_ERROR");
  try {
    body();
  } catch (const Type& error) {
    for (const std::string& part : parts) {
      EXPECT_THAT(std::string(error.what()), ::testing::HasSubstr(part));
    }
    return;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "threw another type: " << error.what();
    return;
  }
  ADD_FAILURE() << "threw nothing";
}

}  // namespace litecache::testing

#define EXPECT_ERROR(statement, Type, ...)                                                     \
  ::litecache::testing::ExpectError<Type>([&] { (void)(statement); }, {__VA_ARGS__}, __FILE__, \
                                          __LINE__)
