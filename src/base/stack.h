// The stack that recursive functions count on.
#pragma once

namespace litecache {

// The limits of recursive functions assume the usual 8 MiB; `ulimit -s` may set less. Raises this
// thread's limit and the size for threads to come, as far as the system allows.
void EnsureStack();

}  // namespace litecache
