#include "engine/core/log.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/rotating_file_sink.h>

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley {
namespace {

spdlog::level::level_enum library_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      break;
  }
  return spdlog::level::err;
}

}  // namespace

std::string_view log_level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      break;
  }
  return "error";
}

struct Log::State {
  std::unique_ptr<spdlog::logger> logger;
  std::string origin;
};

Log::Log(const LogSettings& settings) : state_(std::make_unique<State>()) {
  state_->origin = settings.origin;
  try {
    auto sink = std::make_shared<spdlog::sinks::rotating_file_sink_mt>(
        settings.path, settings.max_bytes, static_cast<size_t>(settings.num_old_files));
    state_->logger = std::make_unique<spdlog::logger>("galley", std::move(sink));
  } catch (const spdlog::spdlog_ex& error) {
    throw Error(Reason::kCannotCreate,
                cat("cannot open the log ", settings.path, ": ", error.what()));
  }
  state_->logger->set_formatter(std::make_unique<spdlog::pattern_formatter>(
      "%Y-%m-%dT%H:%M:%S.%eZ %v", spdlog::pattern_time_type::utc));
  state_->logger->set_level(library_level(settings.least));
  state_->logger->flush_on(spdlog::level::trace);
  state_->logger->set_error_handler([](const std::string&) {});  // a full disk must not end a run
}

Log::~Log() = default;

void Log::write(LogLevel level, std::string_view job, std::string_view text) {
  std::string line = state_->origin;
  if (!job.empty()) line += cat(" [", job, "]");
  line += cat(" ", log_level_name(level), ": ", text);
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }, ' ');
  state_->logger->log(library_level(level), "{}", line);
}

}  // namespace galley
