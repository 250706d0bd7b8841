#include "launcher/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "engine/core/strings.h"
#include "launcher/protocol.h"
#include "launcher/table.h"

namespace galley::launcher {
namespace {

constexpr char kRecordMark = '\x1e';  // ASCII record separator: no log line begins with it
constexpr double kGib = 1024.0 * 1024 * 1024;
constexpr double kMib = 1024.0 * 1024;
constexpr size_t kTableNameWidth = 40;
constexpr size_t kTableReasonWidth = 200;
constexpr size_t kLeastNameWidth = 8;

std::string memory_text(const JobRow& row) {
  const auto measured = static_cast<double>(row.attempt_peak_bytes);
  const auto predicted = static_cast<double>(row.predicted_bytes);
  const bool large = std::max(measured, predicted) >= kGib;
  const double unit = large ? kGib : kMib;
  return format("%.*f/%.*f %s", large ? 1 : 0, measured / unit, large ? 1 : 0, predicted / unit,
                large ? "GiB" : "MiB");
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c == '\n' ? ' ' : c;
  }
  return quoted + "\"";
}

JobState job_state_from_name(std::string_view name) {
  for (const JobState state : {JobState::kWaiting, JobState::kRunning, JobState::kFinished,
                               JobState::kFailed, JobState::kRefused, JobState::kSkipped}) {
    if (job_state_name(state) == name) return state;
  }
  return JobState::kStopped;
}

}  // namespace

std::string one_line(std::string_view text) {
  std::vector<std::string> lines;
  for (const std::string& line : split(text, '\n')) {
    if (const std::string_view words = trim(line); !words.empty()) lines.emplace_back(words);
  }
  return join(lines, "; ");
}

std::string shortened(const std::string& text, size_t width) {
  constexpr std::string_view kGap = "...";
  if (text.size() <= width) return text;
  std::string start = text.substr(0, width - std::min(width, kGap.size()));
  while (!is_valid_utf8(start)) start.pop_back();
  return start.append(kGap);
}

std::string counted(size_t number, std::string_view noun) {
  return cat(number, " ", noun, number == 1 ? "" : "s");
}

std::string event_line(double wall_clock, const std::string& job, const std::string& text) {
  const auto seconds = static_cast<time_t>(wall_clock);
  std::tm local{};
  localtime_r(&seconds, &local);
  char clock[16];
  std::strftime(clock, sizeof clock, "%H:%M:%S", &local);
  const std::string line = one_line(text);
  return job.empty() ? cat(clock, " ", line)
                     : format("%s %-12s %s", clock, job.c_str(), line.c_str());
}

std::string progress_text(const JobRow& row) {
  const trainer::JobProgress& progress = row.progress;
  if (row.state != JobState::kRunning) {
    std::string text(job_state_name(row.state));
    if (progress.step > 0) text += cat(", step ", progress.step, "/", progress.total_steps);
    return row.reason.empty() ? text : cat(text, ": ", one_line(row.reason));
  }
  if (progress.step == 0 || progress.total_steps == 0) {
    return cat("on ", row.place, ", before its first step");
  }
  std::string text = cat("step ", progress.step, "/", progress.total_steps, "  loss ",
                         format("%.4f", progress.loss), "  ",
                         format_count(progress.tokens_per_second), " tok/s  ", memory_text(row));
  if (row.seconds_left >= 0) text += cat("  left ", format_duration(row.seconds_left));
  return text;
}

std::string summary_table(const std::vector<JobRow>& rows, const std::string& run_directory) {
  Table table(
      {"job", "state", "steps", "loss", "peak (predicted)", "GPU seconds", "restarts", "adapter"});
  for (const JobRow& row : rows) {
    // A job that failed before its first step of this start knows only the step of its checkpoint.
    const bool ran = row.progress.step > 0 && row.progress.total_steps > 0;
    std::string peak = "-";
    if (row.attempt_peak_bytes > 0) {
      peak = format_bytes(static_cast<double>(row.attempt_peak_bytes));
      if (row.predicted_bytes > 0) {
        peak += cat(" (", format_bytes(static_cast<double>(row.predicted_bytes)), ")");
      }
    }
    const std::string reason = shortened(one_line(row.reason), kTableReasonWidth);
    table.add({shortened(row.name, kTableNameWidth), std::string(job_state_name(row.state)),
               ran ? cat(row.progress.step, "/", row.progress.total_steps) : "-",
               ran ? format("%.4f", row.progress.loss) : "-", peak,
               format("%.1f", row.totals.gpu_seconds), cat(row.totals.restarts),
               row.adapter.empty() ? (reason.empty() ? "-" : reason) : row.adapter});
  }
  return cat(table.text(), "run directory: ", run_directory, "\n");
}

std::string jobs_csv(const std::vector<JobRow>& rows, const std::string& slurm_job_id) {
  std::string text =
      "slurm_job_id,job,state,place,attempts,restarts,steps,total_steps,loss,tokens,gpu_seconds,"
      "predicted_bytes,predicted_low_bytes,predicted_high_bytes,measured_peak_bytes,adapter,"
      "reason\n";
  for (const JobRow& row : rows) {
    text += cat(csv_field(slurm_job_id), ",", csv_field(row.name), ",", job_state_name(row.state),
                ",", csv_field(row.place), ",", row.totals.attempts, ",", row.totals.restarts, ",",
                row.progress.step, ",", row.progress.total_steps, ",",
                format("%.6f", row.progress.loss), ",", row.totals.tokens, ",",
                format("%.3f", row.totals.gpu_seconds), ",", row.predicted_bytes, ",",
                row.low_bytes, ",", row.high_bytes, ",", row.totals.peak_bytes, ",",
                csv_field(row.adapter), ",", csv_field(row.reason), "\n");
  }
  return text;
}

Json to_json(const JobRow& row) {
  Json workers = Json::array();
  for (const WorkerRow& worker : row.workers) {
    workers.push(Json::object()
                     .set("place", worker.place)
                     .set("predicted_bytes", Json(worker.predicted_bytes))
                     .set("low_bytes", Json(worker.low_bytes))
                     .set("high_bytes", Json(worker.high_bytes))
                     .set("peak_bytes", Json(worker.peak_bytes)));
  }
  return Json::object()
      .set("job", row.name)
      .set("state", std::string(job_state_name(row.state)))
      .set("place", row.place)
      .set("progress", to_json(row.progress))
      .set("seconds_left", row.seconds_left)
      .set("predicted_bytes", Json(row.predicted_bytes))
      .set("low_bytes", Json(row.low_bytes))
      .set("high_bytes", Json(row.high_bytes))
      .set("peak_bytes", Json(row.totals.peak_bytes))
      .set("workers", std::move(workers))
      .set("attempt_peak_bytes", Json(row.attempt_peak_bytes))
      .set("attempts", row.totals.attempts)
      .set("restarts", row.totals.restarts)
      .set("gpu_seconds", row.totals.gpu_seconds)
      .set("tokens", row.totals.tokens)
      .set("adapter", row.adapter)
      .set("reason", row.reason);
}

JobRow job_row_from_json(const Json& json) {
  JobRow row;
  row.name = json.get_string("job");
  row.state = job_state_from_name(json.get_string("state"));
  row.place = json.get_string("place");
  if (const Json* progress = json.find("progress")) row.progress = progress_from_json(*progress);
  row.seconds_left = json.get_double("seconds_left", -1);
  row.predicted_bytes = static_cast<uint64_t>(json.get_int("predicted_bytes"));
  row.low_bytes = static_cast<uint64_t>(json.get_int("low_bytes"));
  row.high_bytes = static_cast<uint64_t>(json.get_int("high_bytes"));
  row.totals.peak_bytes = static_cast<uint64_t>(json.get_int("peak_bytes"));
  row.attempt_peak_bytes = static_cast<uint64_t>(json.get_int("attempt_peak_bytes"));
  row.totals.attempts = static_cast<int>(json.get_int("attempts"));
  row.totals.restarts = static_cast<int>(json.get_int("restarts"));
  row.totals.gpu_seconds = json.get_double("gpu_seconds");
  row.totals.tokens = json.get_int("tokens");
  if (const Json* workers = json.find("workers")) {
    for (const Json& worker : workers->as_array()) {
      const auto bytes = [&worker](const char* key) {
        return static_cast<uint64_t>(worker.get_int(key));
      };
      row.workers.push_back({worker.get_string("place"), bytes("predicted_bytes"),
                             bytes("low_bytes"), bytes("high_bytes"), bytes("peak_bytes")});
    }
  }
  row.adapter = json.get_string("adapter");
  row.reason = json.get_string("reason");
  return row;
}

std::string launch_record(const Json& record) { return cat(kRecordMark, record.dump(), "\n"); }

std::optional<Json> parse_launch_record(std::string_view line) {
  if (line.empty() || line.front() != kRecordMark) return std::nullopt;
  Json record;
  JsonFault fault;
  if (!parse_json(trim(line.substr(1)), &record, &fault)) return std::nullopt;
  return record;
}

std::string bar_line(const JobRow& row, int columns, Colour colour) {
  const trainer::JobProgress& progress = row.progress;
  const int cells = columns < 110 ? 10 : 20;
  double done = 0;
  if (progress.total_steps > 0) {
    done = static_cast<double>(progress.step) / static_cast<double>(progress.total_steps);
  }
  const int filled = std::clamp(static_cast<int>(done * cells), 0, cells);
  const std::string bar = std::string(static_cast<size_t>(filled), '#') +
                          std::string(static_cast<size_t>(cells - filled), '.');
  const std::string figures = cat(" [", bar, "] ", progress_text(row));
  // A long name gives way to the figures.
  const size_t room = static_cast<size_t>(std::max(columns - 1, 0));
  const size_t for_name = room > figures.size() ? room - figures.size() : 0;
  const std::string name = shortened(row.name, std::max(for_name, kLeastNameWidth));
  std::string text =
      format("%-*s", static_cast<int>(std::clamp(for_name, kLeastNameWidth, size_t{12})),
             name.c_str()) +
      figures;
  if (columns > 1 && text.size() >= static_cast<size_t>(columns)) {
    text.resize(static_cast<size_t>(columns) - 1);
    while (!is_valid_utf8(text)) text.pop_back();
  }
  if (colour == Colour::kNo) return text;
  const char* code = "0";
  if (row.state == JobState::kFinished) code = "32";
  if (row.state == JobState::kFailed || row.state == JobState::kRefused ||
      row.state == JobState::kSkipped) {
    code = "31";
  }
  if (row.state == JobState::kRunning) code = "36";
  return cat("\x1b[", code, "m", text, "\x1b[0m");
}

void Bars::write(const std::string& text) const {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(fd_, text.data() + written, text.size() - written);
    if (count <= 0) return;  // the terminal is gone
    written += static_cast<size_t>(count);
  }
}

void Bars::erase() {
  if (num_drawn_ > 0)
    write(cat("\x1b[", num_drawn_, "F\x1b[J"));  // up to the first bar, clear below
  num_drawn_ = 0;
}

void Bars::scroll(const std::string& line) {
  erase();
  write(line + "\n");
  show(rows_);
}

void Bars::show(const std::vector<JobRow>& rows) {
  rows_ = rows;
  winsize size{};
  const bool known = ioctl(fd_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  const int columns = known ? size.ws_col : 80;
  // Never more bars than the terminal has lines: the cursor could not get back to the first.
  const size_t lines = known && size.ws_row > 2 ? static_cast<size_t>(size.ws_row - 2) : 20;
  erase();
  std::string text;
  for (size_t i = 0; i < std::min(rows_.size(), lines); ++i) {
    text += bar_line(rows_[i], columns, colour_) + "\n";
    ++num_drawn_;
  }
  write(text);
}

}  // namespace galley::launcher
