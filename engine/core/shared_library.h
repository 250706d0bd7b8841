// galley's own shared libraries (MPI, HDF5, CUDA), opened at first use so that the program starts
// in milliseconds and where those are not installed.
//
// They lie in lib/ beside the program (a build folder) or in ../lib (an installation). An opened
// library stays open until the program ends: its threads and exit functions may run in it.
#pragma once

#include <string>

namespace galley {

/// Whether the library's symbols, and those of what it needs, are visible to libraries opened
/// later.
enum class LibrarySymbols { kLocal, kGlobal };

class SharedLibrary {
 public:
  /// Path of the library with this file name, or empty when it is not there.
  static std::string find(const std::string& file_name);
  /// Error(kInternal): where it was looked for, or why the loader refused it.
  static SharedLibrary open(const std::string& file_name, LibrarySymbols symbols);

  const std::string& path() const { return path_; }
  /// The function of this name as Function (a pointer type). Error(kInternal) when the library
  /// lacks it: it belongs to another version of galley.
  template <typename Function>
  Function function(const char* name) const {
    return reinterpret_cast<Function>(symbol(name));
  }

 private:
  SharedLibrary(std::string path, void* handle) : path_(std::move(path)), handle_(handle) {}
  void* symbol(const char* name) const;

  std::string path_;
  void* handle_;
};

}  // namespace galley
