#include "device/cuda/open_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <sstream>
#include <vector>

namespace litecache {
namespace {

std::vector<std::string> Folders() {
  std::vector<std::string> folders = {""};  // the loader's path
  if (const char* given = std::getenv("LITECACHE_CUDA_LIBRARIES"); given != nullptr) {
    std::istringstream parts(given);
    for (std::string folder; std::getline(parts, folder, ':');) {
      if (!folder.empty()) folders.push_back(folder + "/");
    }
  }
  std::vector<std::string> toolkits = {"/usr/local/cuda"};
  if (const char* home = std::getenv("CUDA_HOME"); home != nullptr && *home != '\0') {
    toolkits.insert(toolkits.begin(), home);
  }
  for (const std::string& toolkit : toolkits) {
    folders.insert(folders.end(), {toolkit + "/lib64/", toolkit + "/lib/"});
  }
  return folders;
}

}  // namespace

void* OpenCudaLibrary(std::initializer_list<const char*> names, std::string* why) {
  why->clear();
  for (const char* name : names) {
    for (const std::string& folder : Folders()) {
      if (void* library = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
      if (why->empty()) *why = dlerror();
    }
  }
  return nullptr;
}

}  // namespace litecache
