#include "device/cuda/open_library.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "scoped_variable.h"
#include "temporary_directory.h"

namespace litecache {
namespace {

constexpr const char* kName = "liblitecache_open_library_test.so.13";

// Any library, under that name.
void PutLibraryInto(const std::filesystem::path& folder) {
  const auto programs = std::filesystem::canonical("/proc/self/exe").parent_path();
  std::filesystem::create_symlink(programs / "fake_gdrcopy.so", folder / kName);
}

TEST(OpenCudaLibrary, LooksInTheGivenFoldersInTurn) {
  const testing::TemporaryDirectory first, second;
  const std::string folders = first.path().string() + "::" + second.path().string();
  const testing::ScopedVariable variable("LITECACHE_CUDA_LIBRARIES", folders);
  std::string why;
  EXPECT_EQ(OpenCudaLibrary({kName, "liblitecache_none.so"}, &why), nullptr);
  EXPECT_NE(why.find(kName), std::string::npos) << why;
  PutLibraryInto(second.path());
  void* library = OpenCudaLibrary({"liblitecache_none.so", kName}, &why);
  ASSERT_NE(library, nullptr) << why;
  EXPECT_NE(dlsym(library, "gdr_open"), nullptr);
  dlclose(library);  // other tests must not find it
}

TEST(OpenCudaLibrary, LooksInTheToolkit) {
  const testing::TemporaryDirectory toolkit;
  const testing::ScopedVariable variable("CUDA_HOME", toolkit.path().string());
  std::filesystem::create_directory(toolkit.path() / "lib64");
  PutLibraryInto(toolkit.path() / "lib64");
  std::string why;
  void* library = OpenCudaLibrary({kName}, &why);
  ASSERT_NE(library, nullptr) << why;
  dlclose(library);
}

}  // namespace
}  // namespace litecache
