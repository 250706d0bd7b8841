// What people see of a run: lines, bars, the final summary, and the records with which a run tells
// its parent `galley launch`. Pure functions of values, but for Bars, which writes to a terminal.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/coordinator.h"

namespace galley::launcher {

/// "10:41:07 legal-8b     text", local time.
std::string event_line(double wall_clock, const std::string& job, const std::string& text);
/// Lines as one: trimmed, joined by "; ".
std::string one_line(std::string_view text);
/// At most `width` characters, with ... at the place of what is left out.
std::string shortened(const std::string& text, size_t width);
/// "1 job", "2 jobs".
std::string counted(size_t number, std::string_view noun);
/// "step 120/1840  loss 1.2034  6.1 k tok/s  31.2/31.4 GiB  left 2 h 58 min".
std::string progress_text(const JobRow& row);
/// The table at the end of a run, with the path of the run directory.
std::string summary_table(const std::vector<JobRow>& rows, const std::string& run_directory);
/// jobs.csv: one row per job, joins with sacct by Slurm job id.
std::string jobs_csv(const std::vector<JobRow>& rows, const std::string& slurm_job_id);

Json to_json(const JobRow& row);
JobRow job_row_from_json(const Json& json);

/// One record of a run for its parent, as a line of its stderr, and back; nothing for other lines.
std::string launch_record(const Json& record);
std::optional<Json> parse_launch_record(std::string_view line);

enum class Colour { kNo, kYes };

/// One line per job at the bottom of a terminal; events scroll above. Owned by launch.
class Bars {
 public:
  Bars(int fd, Colour colour) : fd_(fd), colour_(colour) {}
  /// Takes the lines away again.
  ~Bars() { erase(); }
  Bars(const Bars&) = delete;
  Bars& operator=(const Bars&) = delete;
  /// Prints a line above the bars.
  void scroll(const std::string& line);
  void show(const std::vector<JobRow>& rows);

 private:
  void erase();
  void write(const std::string& text) const;

  int fd_;
  Colour colour_;
  std::vector<JobRow> rows_;
  int num_drawn_ = 0;
};
/// One job's line of at most `columns` characters.
std::string bar_line(const JobRow& row, int columns, Colour colour);

}  // namespace galley::launcher
