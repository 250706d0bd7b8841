// Dataset: a file of training rows, checked line by line before anything else touches it.
//
// JSON Lines or one JSON array, told apart by content, never by the file's name. Every fault of the
// file is found in one pass, each with physical line, column and kind. The file stays mapped and
// only the places of good rows are kept (32 bytes a row), so files larger than memory work.
// A Dataset belongs to one thread at a time: row() uses a parser's buffers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/file.h"
#include "engine/core/json.h"

namespace galley::text {

/// What can be wrong with a file or a row. Of several in one row the first of this order is told.
enum class FaultKind {
  kEmptyFile,
  kNotText,
  kNotUtf8,
  kLfsPointer,
  kBom,
  kLineTooLong,
  kNulByte,
  kInvalidUtf8,
  kJsonSyntax,
  kTooDeep,
  kDuplicateKey,
  kInvalidUnicode,
  kNotObject,
  kMissingKey,
  kAmbiguousForm,
  kMixedForm,
  kWrongType,
  kEmptyMessages,
  kUnknownRole,
  kBadTools,
  kBadToolCall,
  kUnsupportedPart,
  kWrongValue,
  kUnsupported,  // a valid row that this version cannot train on
  kTemplate,     // the chat template refuses the row
};

/// Snake case: "json_syntax", "wrong_type", ...
std::string_view fault_name(FaultKind kind);

struct RowFault {
  uint64_t line = 0;    // physical line from 1; 0 = the file as a whole
  uint64_t column = 0;  // character of the line from 1; 0 = the file as a whole
  FaultKind kind = FaultKind::kEmptyFile;
  std::string text;  // reason and remedy; never the user's own text
};

/// "FILE:line:column: kind: reason", or "FILE: kind: reason" for the file as a whole.
std::string format_fault(const std::string& path, const RowFault& fault);

/// The forms of a row, recognised by its keys.
enum class RowForm : uint8_t {
  kMessages,          // messages
  kPromptCompletion,  // prompt, completion: strings, or lists of messages
  kText,              // text
  kAlpaca,            // instruction, output; optional input, system, history
  kShareGpt,          // conversations; optional system, tools, chosen
};
inline constexpr size_t kNumRowForms = 5;
std::string_view row_form_name(RowForm form);

enum class DatasetContainer { kLines, kArray };

struct DatasetReport {
  DatasetContainer container = DatasetContainer::kLines;
  uint64_t num_rows = 0;                          // rows without a fault
  std::array<uint64_t, kNumRowForms> by_form{};   // good rows of each form
  std::vector<RowFault> faults;                   // in order of lines; bounded by max_faults
  uint64_t num_faults = 0;                        // all of them
  std::map<FaultKind, uint64_t> faults_by_kind;   // all of them
  std::vector<uint64_t> lines_without_assistant;  // good rows that have no assistant turn with loss
  bool ok() const { return num_faults == 0; }
  /// "12 rows (10 messages, 2 text)".
  std::string summary() const;
};

struct DatasetOptions {
  uint64_t max_line_bytes = uint64_t{256} << 20;  // longer lines or rows are `line_too_long`
  size_t max_faults = 1000;                       // stored; all are counted
};

class LineParser;

class Dataset {
 public:
  /// Reads and checks the whole file. Error only when it cannot be read at all (kMissingPath,
  /// kPermission, kIo; kBadData for a folder); faults of its content are in the report.
  static Dataset read(const std::string& path, const DatasetOptions& options = {});
  ~Dataset();
  Dataset(Dataset&& other) noexcept;
  Dataset& operator=(Dataset&& other) noexcept;

  const std::string& path() const { return path_; }
  const DatasetReport& report() const { return report_; }
  /// Good rows, in the order of the file.
  size_t num_rows() const { return places_.size(); }
  /// Row `index`, parsed again from the mapped file.
  Json row(size_t index) const;
  /// The same for threads that read at the same time, each with a parser of its own.
  Json row(size_t index, LineParser* parser) const;
  uint64_t line(size_t index) const { return places_[index].line; }
  RowForm form(size_t index) const { return places_[index].form; }
  /// Bytes of the row's JSON text.
  uint64_t row_bytes(size_t index) const { return places_[index].size; }
  /// 32 hexadecimal digits of the file's content.
  std::string content_hash() const;

 private:
  struct Place {
    uint64_t offset;
    uint64_t size;
    uint64_t line;
    RowForm form;
  };
  struct Reader;
  explicit Dataset(const std::string& path);

  std::string path_;
  MappedFile file_;
  std::unique_ptr<LineParser> parser_;
  std::vector<Place> places_;
  DatasetReport report_;
};

/// Lines for people: each fault (at most `limit`), then how many more there are of which kinds.
std::string describe_faults(const std::string& path, const DatasetReport& report,
                            size_t limit = 20);

}  // namespace galley::text
