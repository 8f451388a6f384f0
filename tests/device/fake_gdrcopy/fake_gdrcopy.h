// GDRCopy for tests on machines without it: a library next to the test program, which is found
// under GDRCopy's name once it is loaded (libgdrapi.cc).
#pragma once

#include <dlfcn.h>

#include <filesystem>
#include <string>

#include "device/fake_gdrcopy/state.h"

namespace litecache::testing {

// While such an object exists, the fake driver is available; the library stays loaded.
class FakeGdrCopy {
 public:
  FakeGdrCopy() {
    if (dlopen("libgdrapi.so.2", RTLD_NOW | RTLD_NOLOAD) == nullptr) {
      const auto program = std::filesystem::read_symlink("/proc/self/exe");
      dlopen((program.parent_path() / "fake_gdrcopy.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    }
    void* const library = dlopen("libgdrapi.so.2", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) {
      const char* const error = dlerror();
      reason_ = std::string("fake_gdrcopy.so is not beside the program: ") +
                (error != nullptr ? error : "");
      return;
    }
    using State = FakeGdrCopyState*();
    auto* const state = reinterpret_cast<State*>(dlsym(library, kFakeGdrCopyState));
    if (state == nullptr) {
      reason_ = "GDRCopy itself is loaded: the other tests use it";
      return;
    }
    state_ = state();
    state_->has_driver = true;
  }
  ~FakeGdrCopy() {
    if (state_ == nullptr) return;
    state_->has_driver = false;
    state_->pin_error = 0;
    state_->map_error = 0;
  }
  FakeGdrCopy(const FakeGdrCopy&) = delete;
  FakeGdrCopy& operator=(const FakeGdrCopy&) = delete;

  // Why the fake is not available; empty if it is.
  const std::string& reason() const { return reason_; }
  FakeGdrCopyState& state() { return *state_; }
  bool nothing_is_left() const {
    return state_->opened == 0 && state_->pinned == 0 && state_->mapped == 0;
  }

 private:
  FakeGdrCopyState* state_ = nullptr;
  std::string reason_;
};

}  // namespace litecache::testing
