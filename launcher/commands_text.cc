// tokenize, render, data: JSON lines in, JSON lines out.
#include <ctime>
#include <fstream>
#include <functional>
#include <istream>
#include <ostream>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/json.h"
#include "engine/core/strings.h"
#include "engine/text/records.h"
#include "launcher/commands.h"
#include "launcher/json_lines.h"

namespace galley::launcher {

std::tm clock_of(const std::string& now) {
  std::tm clock{};
  if (now.empty()) {
    const time_t seconds = std::time(nullptr);
    localtime_r(&seconds, &clock);
    return clock;
  }
  const char* rest = strptime(now.c_str(), "%Y-%m-%dT%H:%M:%S", &clock);
  if (rest == nullptr || *rest != '\0') {
    throw Error(Reason::kUsage,
                cat("--now ", now, " is no time; write it like 2025-03-14T09:26:53"));
  }
  clock.tm_isdst = -1;
  std::mktime(&clock);  // fills in the days of week and year
  return clock;
}

void for_each_record(const std::string& input, std::istream& in,
                     const std::function<void(const Json&)>& take) {
  std::ifstream file;
  if (!input.empty()) {
    file_bytes(input);  // names what is wrong with the path
    file.open(input, std::ios::binary);
    if (!file) throw Error(Reason::kPermission, cat("cannot read ", input));
  }
  std::istream& from = input.empty() ? in : file;
  const std::string where = input.empty() ? "standard input" : input;
  std::string line;
  for (int64_t number = 1; std::getline(from, line); ++number) {
    if (trim(line).empty()) continue;
    Json record = parse_json_or_throw(line, cat(where, " line ", number), Reason::kBadData);
    if (!record.is_object()) {
      throw Error(Reason::kBadData,
                  cat(where, " line ", number, ": each line must be a JSON object"));
    }
    take(record);
  }
  if (from.bad()) throw Error(Reason::kIo, cat("cannot read ", where));
}

int command_tokenize(const TokenizeOptions& options, Streams streams) {
  const text::Tokenizer tokenizer = text::Tokenizer::load(options.tokenizer);
  const auto special = options.no_special ? text::AddSpecial::kNo : text::AddSpecial::kYes;
  for_each_record(options.input, streams.in, [&](const Json& record) {
    streams.out << text::tokenize_record(tokenizer, record, special).dump() << '\n';
  });
  return 0;
}

int command_render(const RenderOptions& options, Streams streams) {
  const text::ChatTemplate chat_template = options.template_file.empty()
                                               ? text::ChatTemplate::load_for_model(options.model)
                                               : text::ChatTemplate::load(options.template_file);
  text::RenderRecordOptions render;
  if (!options.model.empty()) render.special = text::load_special_tokens(options.model);
  render.local_now = clock_of(options.now);
  for_each_record(options.input, streams.in, [&](const Json& record) {
    streams.out << text::render_record(chat_template, record, render).dump() << '\n';
  });
  return 0;
}

int command_data(const DataOptions& options, Streams streams) {
  std::optional<text::ChatTemplate> chat_template;
  if (!options.template_file.empty()) {
    chat_template = text::ChatTemplate::load(options.template_file);
  } else {
    try {
      chat_template = text::ChatTemplate::load_for_model(options.model);
    } catch (const Error& error) {
      // Rows without turns need none; rows with turns are reported by line.
      if (error.reason() != Reason::kMissingPath || !is_directory(options.model)) throw;
    }
  }
  text::RowOptions rows;
  rows.loss = text::parse_loss(options.loss);
  rows.truncation = text::parse_truncation(options.truncation);
  rows.max_length = static_cast<size_t>(options.max_length);
  rows.sanitize = options.special_tokens == "parse" ? text::Sanitize::kNo : text::Sanitize::kYes;
  rows.local_now = clock_of(options.now);
  const text::RowTokenizer tokenizer(text::Tokenizer::load(options.model),
                                     chat_template ? &*chat_template : nullptr,
                                     text::load_special_tokens(options.model), rows);
  const text::Dataset dataset = text::Dataset::read(options.data);
  const auto view = options.show_labels ? text::DataView::kLabels : text::DataView::kIds;
  const uint64_t errors = text::data_records(
      dataset, tokenizer, view, [&](const Json& record) { streams.out << record.dump() << '\n'; });
  if (errors == 0) return 0;
  streams.err << "galley: " << options.data << ": " << errors
              << (errors == 1 ? " row is" : " rows are")
              << " broken; see the records with \"error\"\n";
  return reason_traits(Reason::kBadData).exit_code;
}

}  // namespace galley::launcher
