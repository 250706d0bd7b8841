// Journal: what was decided and what happened, one JSON object per line, never rewritten.
//
// append() returns after the line is on the disk. A torn last line (a crash while writing) is
// tolerated by readers and cut off by the next writer. One writer at a time: the run directory's
// lock sees to that.
#pragma once

#include <string>
#include <vector>

#include "engine/core/file.h"
#include "engine/core/json.h"

namespace galley {

/// All whole records of a journal; none when the file does not exist. Error(kIo) naming the line
/// for a broken line that is not the last.
std::vector<Json> read_journal(const std::string& path);

class Journal {
 public:
  /// Opens for appending; the file is created with mode 0600 when it is missing.
  explicit Journal(const std::string& path);
  /// Writes one record and flushes it to the disk. kDiskFull, kIo: the record is not in the
  /// journal.
  void append(const Json& record);

 private:
  std::string path_;
  FileDescriptor file_;
  uint64_t size_ = 0;  // bytes of whole records
};

}  // namespace galley
