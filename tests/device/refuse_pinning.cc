#include "device/refuse_pinning.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>

namespace {
std::atomic<bool> refuse = false;
std::atomic<void*> refused = nullptr;
}  // namespace

// Replaces the C library's function and does the same for the rest of the program.
extern "C" int madvise(void* address, size_t length, int advice) noexcept {
  const auto result = static_cast<int>(syscall(SYS_madvise, address, length, advice));
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  // Not the first page, which is touched.
  if (refuse && advice == MADV_HUGEPAGE && length >= 2 * page) {
    mprotect(static_cast<std::byte*>(address) + page, page, PROT_NONE);
    refused = address;
  }
  return result;
}

namespace litecache::testing {

RefusePinning::RefusePinning() {
  refused = nullptr;
  refuse = true;
}
RefusePinning::~RefusePinning() { refuse = false; }
void* RefusePinning::last() { return refused; }

}  // namespace litecache::testing
