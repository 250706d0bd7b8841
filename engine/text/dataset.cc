#include "engine/text/dataset.h"

#include <algorithm>
#include <cstring>

#include "engine/core/error.h"
#include "engine/core/hash.h"
#include "engine/core/strings.h"
#include "engine/text/dataset_line.h"
#include "engine/text/dataset_shape.h"

namespace galley::text {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kBlanks = " \t\r\n";

bool is_blank(std::string_view text) {
  return text.find_first_not_of(kBlanks) == std::string_view::npos;
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// Name of the packing of a file that is no text, by its first bytes.
std::string_view packing_of(std::string_view text) {
  using namespace std::string_view_literals;
  constexpr std::pair<std::string_view, std::string_view> kMarks[] = {
      {"\x1F\x8B"sv, "gzip"},  {"\x28\xB5\x2F\xFD"sv, "zstd"},
      {"BZh"sv, "bzip2"},      {"\xFD\x37\x7A\x58\x5A"sv, "xz"},
      {"PK\x03\x04"sv, "zip"}, {"PAR1"sv, "Parquet"},
      {"ARROW1"sv, "Arrow"},   {"SQLite format 3"sv, "SQLite"}};
  for (const auto& [mark, name] : kMarks) {
    if (text.starts_with(mark)) return name;
  }
  return {};
}

}  // namespace

std::string_view fault_name(FaultKind kind) {
  constexpr std::string_view kNames[] = {
      "empty_file",    "not_text",         "not_utf8",       "lfs_pointer",  "bom",
      "line_too_long", "nul_byte",         "invalid_utf8",   "json_syntax",  "too_deep",
      "duplicate_key", "invalid_unicode",  "not_object",     "missing_key",  "ambiguous_form",
      "mixed_form",    "wrong_type",       "empty_messages", "unknown_role", "bad_tools",
      "bad_tool_call", "unsupported_part", "wrong_value",    "unsupported",  "template"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view row_form_name(RowForm form) {
  constexpr std::string_view kNames[kNumRowForms] = {"messages", "prompt/completion", "text",
                                                     "alpaca", "sharegpt"};
  return kNames[static_cast<size_t>(form)];
}

std::string format_fault(const std::string& path, const RowFault& fault) {
  const std::string place = fault.line == 0 ? path : cat(path, ":", fault.line, ":", fault.column);
  return cat(place, ": ", fault_name(fault.kind), ": ", fault.text);
}

std::string DatasetReport::summary() const {
  std::vector<std::string> parts;
  for (size_t i = 0; i < kNumRowForms; ++i) {
    if (by_form[i] > 0) {
      parts.push_back(cat(by_form[i], " ", row_form_name(static_cast<RowForm>(i))));
    }
  }
  return cat(num_rows, num_rows == 1 ? " row" : " rows",
             parts.empty() ? "" : cat(" (", join(parts, ", "), ")"));
}

std::string describe_faults(const std::string& path, const DatasetReport& report, size_t limit) {
  std::string out;
  // Rows with one and the same fault are shown a few times; the rest is a number.
  constexpr size_t kShownOfAKind = 3;
  std::map<std::pair<FaultKind, std::string>, size_t> counts, told;
  for (const RowFault& fault : report.faults) ++counts[{fault.kind, fault.text}];
  const bool complete = report.faults.size() == report.num_faults;
  size_t shown = 0;
  for (const RowFault& fault : report.faults) {
    if (shown == limit) break;
    const std::pair<FaultKind, std::string> kind{fault.kind, fault.text};
    const size_t before = told[kind]++;
    if (before > kShownOfAKind) continue;
    const size_t left = counts[kind] - before;
    if (before < kShownOfAKind || left == 1) {
      out += format_fault(path, fault) + "\n";
      ++shown;
    } else if (complete) {
      out += cat(path, ": and ", left, " more rows of this kind\n");
    } else {
      out += cat(path, ": and more rows of this kind\n");
    }
  }
  if (report.num_faults <= shown) return out;
  std::vector<std::string> kinds;
  for (const auto& [kind, count] : report.faults_by_kind) {
    kinds.push_back(cat(count, " ", fault_name(kind)));
  }
  return out + cat(path, ": ", report.num_faults, " faults in all (", join(kinds, ", "), ")\n");
}

// Reads one file into `data`: decides what it is, then goes through its rows.
struct Dataset::Reader {
  Reader(Dataset* dataset, const DatasetOptions& read_options)
      : data(*dataset), options(read_options), text(data.file_.text()) {}

  void run() {
    if (whole_file_fault()) return;
    if (is_array()) {
      data.report_.container = DatasetContainer::kArray;
      read_array();
    } else {
      read_lines();
    }
    if (num_nul > 0 && num_parsed == 0) {
      data.places_.clear();
      data.report_ = DatasetReport{};
      add({0, 0, FaultKind::kNotText, "a binary file: NUL bytes and no line of JSON"});
    }
    data.report_.num_rows = data.places_.size();
  }

  void add(RowFault fault) {
    DatasetReport& report = data.report_;
    ++report.num_faults;
    ++report.faults_by_kind[fault.kind];
    if (fault.kind == FaultKind::kNulByte) ++num_nul;
    if (report.faults.size() < options.max_faults) report.faults.push_back(std::move(fault));
  }

  bool whole_file_fault() {
    const auto refuse = [&](FaultKind kind, std::string why) {
      add({0, 0, kind, std::move(why)});
      return true;
    };
    if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
      return refuse(FaultKind::kNotUtf8, "UTF-16; convert the file (iconv -f utf16 -t utf8)");
    }
    if (const std::string_view name = packing_of(text); !name.empty()) {
      return refuse(FaultKind::kNotText,
                    cat("a ", name, " file; unpack or convert it to JSON Lines first"));
    }
    if (text.starts_with("version https://git-lfs.github.com/spec/v1")) {
      return refuse(FaultKind::kLfsPointer,
                    "a Git LFS pointer, not the data; fetch it (git lfs pull)");
    }
    if (is_blank(text)) return refuse(FaultKind::kEmptyFile, "the file has no rows");
    return false;
  }

  // A file that begins with [ is one JSON array, unless its first line alone is a whole value and
  // more lines follow.
  bool is_array() {
    std::string_view rest = text;
    if (rest.starts_with(kByteOrderMark)) rest.remove_prefix(kByteOrderMark.size());
    const size_t first = rest.find_first_not_of(kBlanks);
    if (first == std::string_view::npos || rest[first] != '[') return false;
    rest.remove_prefix(first);
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos || is_blank(rest.substr(end))) return true;
    return scan_json(rest.substr(0, end)).has_value();
  }

  void read_lines() {
    uint64_t number = 0;
    for (size_t at = 0; at < text.size();) {
      const void* found = std::memchr(text.data() + at, '\n', text.size() - at);
      const size_t end = found == nullptr
                             ? text.size()
                             : static_cast<size_t>(static_cast<const char*>(found) - text.data());
      ++number;
      const std::string_view line = text.substr(at, end - at);
      if (line.starts_with(kByteOrderMark)) {
        add({number, 1, FaultKind::kBom, "a byte order mark; save the file without it"});
      } else if (!is_blank(line)) {
        read_row(at, trimmed(line), number);
      }
      at = end + 1;
    }
  }

  // `body`: the row without blanks around, in the line (or lines, in an array) that begins at
  // `line_begin` with number `line`.
  void read_row(size_t line_begin, std::string_view body, uint64_t line) {
    const auto begin = static_cast<size_t>(body.data() - text.data());
    if (body.size() > options.max_line_bytes) {
      return add(
          {line, column(line_begin, begin), FaultKind::kLineTooLong,
           cat("a row of ", format_bytes(static_cast<double>(body.size())), ", the bound is ",
               format_bytes(static_cast<double>(options.max_line_bytes)))});
    }
    Json value;
    if (auto fault = data.parser_->parse(body, &value)) {
      const std::string_view before = text.substr(line_begin, begin + fault->offset - line_begin);
      const auto lines_on = static_cast<uint64_t>(std::count(before.begin(), before.end(), '\n'));
      const size_t last_end = before.rfind('\n');
      const size_t fault_line =
          last_end == std::string_view::npos ? line_begin : line_begin + last_end + 1;
      return add({line + lines_on, column(fault_line, begin + fault->offset), fault->kind,
                  std::move(fault->text)});
    }
    ++num_parsed;
    RowShape shape = check_row(value);
    if (shape.fault) {
      return add(
          {line, column(line_begin, begin), shape.fault->kind, std::move(shape.fault->text)});
    }
    data.places_.push_back({begin, body.size(), line, shape.form});
    ++data.report_.by_form[static_cast<size_t>(shape.form)];
    if (shape.without_assistant) data.report_.lines_without_assistant.push_back(line);
  }

  // Character of a line from 1: bytes that continue a character do not count.
  uint64_t column(size_t line_begin, size_t offset) const {
    uint64_t count = 1;
    for (size_t i = line_begin; i < std::min(offset, text.size()); ++i) {
      count += (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80 ? 1 : 0;
    }
    return count;
  }

  // Where the array reader stands: line_begin is the offset of the line that `at` is in.
  struct Position {
    size_t at = 0;
    size_t line_begin = 0;
    uint64_t line = 1;
  };

  void move_to(Position* position, size_t at) const {
    while (position->at < at) {
      const void* found = std::memchr(text.data() + position->at, '\n', at - position->at);
      if (found == nullptr) break;
      position->at = static_cast<size_t>(static_cast<const char*>(found) - text.data()) + 1;
      position->line_begin = position->at;
      ++position->line;
    }
    position->at = at;
  }

  // End of the array item at `at`: the comma or bracket behind it, or the end of the file. A line
  // end inside a string is a fault and ends the string here; after one, a line that begins as the
  // item's own line did ends the item, so that the next items stay readable.
  size_t item_end(size_t at) const {
    const size_t first = std::min(text.find_first_not_of(kBlanks, at), text.size());
    const size_t line_end = first == 0 ? std::string_view::npos : text.rfind('\n', first - 1);
    const size_t line_begin = line_end == std::string_view::npos ? 0 : line_end + 1;
    const std::string_view opening =
        is_blank(text.substr(line_begin, first - line_begin)) && first < text.size()
            ? text.substr(line_begin, first - line_begin + 1)
            : std::string_view();
    int depth = 0;
    bool in_string = false, broken = false;
    for (at = first; at < text.size(); ++at) {
      const char c = text[at];
      if (c == '\n' && (in_string || broken)) {
        in_string = false;
        broken = true;
        if (!opening.empty() && text.substr(at + 1).starts_with(opening)) return at;
      } else if (in_string) {
        if (c == '\\') {
          ++at;
        } else if (c == '"') {
          in_string = false;
        }
      } else if (c == '"') {
        in_string = true;
      } else if (c == '{' || c == '[') {
        ++depth;
      } else if (c == '}' || c == ']') {
        if (depth == 0) return at;
        --depth;
      } else if (c == ',' && depth == 0) {
        return at;
      }
    }
    return text.size();
  }

  void syntax(const Position& position, std::string why) {
    add({position.line, column(position.line_begin, position.at), FaultKind::kJsonSyntax,
         std::move(why)});
  }

  void read_array() {
    Position position;
    if (text.starts_with(kByteOrderMark)) {
      add({1, 1, FaultKind::kBom, "a byte order mark; save the file without it"});
    }
    move_to(&position, text.find('[') + 1);
    bool first = true;
    while (true) {
      const size_t end = item_end(position.at);
      const std::string_view body = trimmed(text.substr(position.at, end - position.at));
      const bool last = end >= text.size() || (text[end] != ',' && text[end] != '\n');
      if (!body.empty()) {
        move_to(&position, static_cast<size_t>(body.data() - text.data()));
        read_row(position.line_begin, body, position.line);
      }
      move_to(&position, std::min(end, text.size()));
      if (body.empty() && !(first && last)) syntax(position, "a row is missing between two commas");
      if (last) break;
      move_to(&position, end + 1);
      first = false;
    }
    if (position.at == text.size()) return syntax(position, "the list is not closed by ]");
    if (text[position.at] != ']') return syntax(position, "] is expected here");
    move_to(&position, position.at + 1);
    const size_t rest = text.find_first_not_of(kBlanks, position.at);
    if (rest != std::string_view::npos) {
      move_to(&position, rest);
      syntax(position, "text goes on after the end of the list");
    } else if (data.places_.empty() && data.report_.num_faults == 0) {
      add({0, 0, FaultKind::kEmptyFile, "the file has no rows"});
    }
  }

  Dataset& data;
  const DatasetOptions& options;
  std::string_view text;
  uint64_t num_nul = 0;
  uint64_t num_parsed = 0;
};

Dataset::Dataset(const std::string& path)
    : path_(path), file_(path), parser_(std::make_unique<LineParser>()) {}
Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&& other) noexcept = default;
Dataset& Dataset::operator=(Dataset&& other) noexcept = default;

Dataset Dataset::read(const std::string& path, const DatasetOptions& options) {
  if (is_directory(path)) {
    throw Error(Reason::kBadData, cat(path, " is a folder; name a file of JSON Lines or JSON"));
  }
  Dataset dataset(path);
  Reader(&dataset, options).run();
  return dataset;
}

Json Dataset::row(size_t index) const { return row(index, parser_.get()); }

Json Dataset::row(size_t index, LineParser* parser) const {
  GALLEY_CHECK(index < places_.size());
  const Place& place = places_[index];
  Json value;
  const auto fault = parser->parse(file_.text().substr(place.offset, place.size), &value);
  if (fault) {
    throw Error(Reason::kBadData,
                cat(path_, ":", place.line, ": the file was changed while it was read"));
  }
  return value;
}

std::string Dataset::content_hash() const { return hash128_hex(file_.text()); }

}  // namespace galley::text
