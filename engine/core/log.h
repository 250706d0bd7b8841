// Log: plain lines for people, one event per line, in a file of bounded size.
//
// "2026-11-30T16:49:53.123Z n1 rank 3 [legal-8b] warning: text". One Log per file and process; a
// line is one write. Files rotate (log, log.1, log.2) so that a run never fills a disk. Methods may
// be called from any thread. The only home of the logging library.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace galley {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
std::string_view log_level_name(LogLevel level);

struct LogSettings {
  std::string path;              // the file; its directory exists
  std::string origin;            // "n1 rank 3": host and rank, in every line
  uint64_t max_bytes = 1 << 20;  // of one file
  int num_old_files = 2;         // kept beside it
  LogLevel least = LogLevel::kInfo;
};

class Log {
 public:
  /// Error(kCannotCreate) when the file cannot be opened.
  explicit Log(const LogSettings& settings);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  /// One line; control characters in `text` become spaces. A full disk is not an error here.
  void write(LogLevel level, std::string_view job, std::string_view text);
  void info(std::string_view text) { write(LogLevel::kInfo, "", text); }
  void warning(std::string_view text) { write(LogLevel::kWarning, "", text); }
  void error(std::string_view text) { write(LogLevel::kError, "", text); }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace galley
