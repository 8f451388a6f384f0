#include "device/cuda/bar_mapping.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <cstdint>
#include <utility>

namespace litecache {
namespace {

// GPU memory is pinned and mapped in pages of this size.
constexpr size_t kGpuPage = size_t{64} << 10;

// The functions used from GDRCopy 2, by their names in its library.
struct Library {
  struct Handle {
    unsigned long value;
  };
  void* (*gdr_open)();
  int (*gdr_close)(void* gdr);
  int (*gdr_pin_buffer)(void* gdr, unsigned long address, size_t bytes, uint64_t p2p_token,
                        uint32_t va_space, Handle* handle);
  int (*gdr_unpin_buffer)(void* gdr, Handle handle);
  int (*gdr_map)(void* gdr, Handle handle, void** mapped, size_t bytes);
  int (*gdr_unmap)(void* gdr, Handle handle, void* mapped, size_t bytes);

  // The library stays loaded.
  bool Load(std::string* reason) {
    void* library = dlopen("libgdrapi.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) library = dlopen("libgdrapi.so", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      *reason = "GDRCopy's library (libgdrapi.so.2) is not installed";
      return false;
    }
    const auto find = [&](const char* name, auto* function) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
      if (*function == nullptr) *reason = fmt::format("libgdrapi.so.2 has no {}", name);
      return *function != nullptr;
    };
    return find("gdr_open", &gdr_open) && find("gdr_close", &gdr_close) &&
           find("gdr_pin_buffer", &gdr_pin_buffer) && find("gdr_unpin_buffer", &gdr_unpin_buffer) &&
           find("gdr_map", &gdr_map) && find("gdr_unmap", &gdr_unmap);
  }
};

class GdrMapping final : public BarMapping {
 public:
  GdrMapping(const Library& library, void* gdr, Buffer memory, size_t bytes)
      : library_(library), gdr_(gdr), memory_(std::move(memory)), bytes_(bytes) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    device_ = memory_.as<std::byte>() + ((address + kGpuPage - 1) / kGpuPage * kGpuPage - address);
  }
  ~GdrMapping() override {
    if (host_ != nullptr) library_.gdr_unmap(gdr_, handle_, host_, bytes_);
    if (pinned_) library_.gdr_unpin_buffer(gdr_, handle_);
    library_.gdr_close(gdr_);
  }

  // The memory begins at a page boundary, and so does the mapping.
  bool Map(std::string* reason) {
    int error = library_.gdr_pin_buffer(gdr_, reinterpret_cast<uintptr_t>(device_), bytes_,
                                        /*p2p_token=*/0, /*va_space=*/0, &handle_);
    pinned_ = error == 0;
    if (pinned_) error = library_.gdr_map(gdr_, handle_, &host_, bytes_);
    if (error != 0) {
      host_ = nullptr;
      *reason = fmt::format("GDRCopy cannot {} {} bytes of this GPU's memory (error {})",
                            pinned_ ? "map" : "pin", bytes_, error);
    }
    return error == 0;
  }

  std::byte* host() const override { return static_cast<std::byte*>(host_); }
  std::byte* device() const override { return device_; }

 private:
  const Library library_;
  void* const gdr_;
  Buffer memory_;
  const size_t bytes_;
  std::byte* device_ = nullptr;
  Library::Handle handle_{};
  bool pinned_ = false;
  void* host_ = nullptr;
};

}  // namespace

std::unique_ptr<BarMapping> CreateBarMapping(CudaDevice& device, size_t bytes,
                                             std::string* reason) {
  Library library;
  if (!library.Load(reason)) return nullptr;
  void* gdr = library.gdr_open();
  if (gdr == nullptr) {
    *reason = "GDRCopy's kernel driver (gdrdrv) is not loaded";
    return nullptr;
  }
  const size_t size = (bytes + kGpuPage - 1) / kGpuPage * kGpuPage;
  Buffer memory;
  try {
    memory = device.Allocate(size + kGpuPage);
    device.Zero(memory.data(), memory.size());
  } catch (...) {
    library.gdr_close(gdr);
    throw;
  }
  auto mapping = std::make_unique<GdrMapping>(library, gdr, std::move(memory), size);
  if (!mapping->Map(reason)) return nullptr;
  return mapping;
}

}  // namespace litecache
