#include "engine/core/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley {

std::vector<Json> read_journal(const std::string& path) {
  std::vector<Json> records;
  if (!path_exists(path)) return records;
  const std::string text = read_file(path);
  size_t start = 0;
  for (int line = 1; start < text.size(); ++line) {
    const size_t end = text.find('\n', start);
    if (end == std::string::npos) break;  // torn: never finished
    const std::string_view record(text.data() + start, end - start);
    try {
      records.push_back(parse_json_or_throw(record, cat(path, ":", line), Reason::kIo));
    } catch (const Error& error) {
      throw Error(error.reason(),
                  cat(error.what(),
                      "; this line of the journal is broken: remove the line to continue "
                      "the run, or start anew with --run NAME"));
    }
    start = end + 1;
  }
  return records;
}

Journal::Journal(const std::string& path) : path_(path) {
  if (path_exists(path)) {
    const std::string text = read_file(path);
    const size_t last = text.rfind('\n');
    size_ = last == std::string::npos ? 0 : last + 1;
  }
  file_.reset(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (!file_.valid()) throw_errno("open", path, errno, Reason::kCannotCreate);
  if (ftruncate(file_.get(), static_cast<off_t>(size_)) != 0) throw_errno("cut", path, errno);
}

void Journal::append(const Json& record) {
  const std::string line = record.dump() + "\n";
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t count = pwrite(file_.get(), line.data() + written, line.size() - written,
                                 static_cast<off_t>(size_ + written));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int error = errno;
      if (ftruncate(file_.get(), static_cast<off_t>(size_)) != 0) {
        // The torn line stays; readers ignore it and the next append overwrites it.
      }
      throw_errno("write", path_, error);
    }
    written += static_cast<size_t>(count);
  }
  if (fdatasync(file_.get()) != 0) throw_errno("flush", path_, errno);
  size_ += line.size();
}

}  // namespace galley
