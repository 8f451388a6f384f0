#include "base/stack.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>

namespace litecache {

void EnsureStack() {
  constexpr rlim_t kStack = rlim_t{8} << 20;
  rlimit limit{};
  if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kStack) return;
  limit.rlim_cur = std::min(kStack, limit.rlim_max);
  setrlimit(RLIMIT_STACK, &limit);  // for this thread, whose stack grows up to the current limit
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return;
  if (pthread_attr_setstacksize(&attributes, kStack) == 0) {
    pthread_setattr_default_np(&attributes);
  }
  pthread_attr_destroy(&attributes);
}

}  // namespace litecache
