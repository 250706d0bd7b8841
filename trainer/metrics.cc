#include "trainer/metrics.h"

#include <algorithm>
#include <cerrno>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"

namespace galley::trainer {
namespace {

constexpr std::string_view kHeader =
    "step,epoch,loss,grad_norm,learning_rate,tokens,targets,tokens_per_s,time,allocated_bytes";

std::string kept_lines(const std::string& path, int64_t last_step) {
  std::string text = cat(kHeader, "\n");
  if (last_step <= 0 || !path_exists(path)) return text;
  int64_t expected = 1;
  for (const std::string& line : split(read_file(path), '\n')) {
    const auto step = parse_int(line.substr(0, line.find(',')));
    const bool whole = std::count(line.begin(), line.end(), ',') ==
                       std::count(kHeader.begin(), kHeader.end(), ',');
    if (!whole || !step || *step < expected || *step > last_step) continue;
    text += line + "\n";
    expected = *step + 1;
  }
  return text;
}

}  // namespace

MetricsFile::MetricsFile(std::string path, int64_t last_step) : path_(std::move(path)) {
  write_file_atomically(path_, kept_lines(path_, last_step));
  file_.open(path_, std::ios::app);
  if (!file_) throw_errno("open", path_, errno);
}

void MetricsFile::append(const JobProgress& progress, double unix_seconds) {
  errno = 0;
  file_ << progress.step << ',' << format("%.6g", progress.epoch) << ','
        << format_double_repr(progress.loss) << ',' << format_double_repr(progress.gradient_norm)
        << ',' << format_double_repr(progress.learning_rate) << ',' << progress.step_tokens << ','
        << progress.step_targets << ',' << format("%.6g", progress.tokens_per_second) << ','
        << format_time_utc(unix_seconds) << ',' << progress.allocated_bytes << '\n';
  file_.flush();
  if (!file_) throw_errno("write", path_, errno == 0 ? EIO : errno);
}

}  // namespace galley::trainer
