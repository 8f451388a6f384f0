// CUDA's libraries beside the runtime, which are loaded when they are needed.
#pragma once

#include <initializer_list>
#include <string>

namespace litecache {

// Opens the first library of these names that is loaded already or found, as dlopen() does; never
// closed. Looks for each on the loader's search path, in the folders of the environment variable
// LITECACHE_CUDA_LIBRARIES (separated by colons), and in those of CUDA's toolkit (CUDA_HOME,
// /usr/local/cuda). Null if there is none: *why then has the loader's first message.
void* OpenCudaLibrary(std::initializer_list<const char*> names, std::string* why);

}  // namespace litecache
