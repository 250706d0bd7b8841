#include "engine/core/shared_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <vector>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"

namespace galley {
namespace {

std::vector<std::string> possible_paths(const std::string& file_name) {
  char program[4096];
  const ssize_t size = ::readlink("/proc/self/exe", program, sizeof program);
  const std::string folder =
      size > 0 ? path_directory(std::string(program, static_cast<size_t>(size))) : ".";
  std::vector<std::string> paths;
  for (const char* place : {"lib", "../lib"}) {
    paths.push_back(path_join(path_join(folder, place), file_name));
  }
  return paths;
}

}  // namespace

std::string SharedLibrary::find(const std::string& file_name) {
  for (const std::string& path : possible_paths(file_name)) {
    if (path_exists(path)) return path;
  }
  return "";
}

SharedLibrary SharedLibrary::open(const std::string& file_name, LibrarySymbols symbols) {
  const std::string path = find(file_name);
  if (path.empty()) {
    throw Error(Reason::kInternal,
                cat("cannot find galley's library ", file_name, "; looked for ",
                    join(possible_paths(file_name), ", "), "; install galley as a whole"));
  }
  const int visible = symbols == LibrarySymbols::kGlobal ? RTLD_GLOBAL : RTLD_LOCAL;
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | visible);
  if (handle == nullptr) throw Error(Reason::kInternal, cat("cannot load ", path, ": ", dlerror()));
  return SharedLibrary(path, handle);
}

void* SharedLibrary::symbol(const char* name) const {
  void* found = ::dlsym(handle_, name);
  if (found == nullptr) {
    throw Error(Reason::kInternal,
                cat(path_, " belongs to another version of galley: it lacks ", name));
  }
  return found;
}

}  // namespace galley
