// TokenFile: the rows of a job's data sets as token ids with a target mask, made once, then mapped
// by every worker. prepare_tokens() makes it; docs/formats.md describes its bytes.
//
// A row's number in the file is the job's position in its data, whatever the parallel layout. The
// file carries a hash of everything that it was made from, so that the same inputs reuse it and an
// edited input is noticed. An open TokenFile is immutable; any thread may read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/file.h"
#include "engine/core/json.h"
#include "engine/text/dataset.h"
#include "engine/text/rows.h"

namespace galley::text {

/// Rows with 2^(k-1) < length <= 2^k, where upper = 2^k.
struct LengthBucket {
  uint64_t upper = 0;
  uint64_t num_rows = 0;
  uint64_t num_tokens = 0;
};

/// What became of one data set.
struct TokenInput {
  std::string path;
  uint64_t num_rows = 0;  // in the token file
};

struct TokenSummary {
  uint64_t num_rows = 0;
  uint64_t num_tokens = 0;
  uint64_t num_targets = 0;  // a label in position 0 has no loss and is none
  uint64_t num_cut = 0;      // rows that truncation shortened
  uint64_t num_no_target = 0;
  uint64_t num_no_target_after_truncation = 0;
  uint64_t num_bad = 0;  // rows with a fault that were skipped because that was asked
  uint64_t longest = 0;
  int64_t highest_id = 0;               // the model's embedding must have more rows than this
  std::vector<LengthBucket> histogram;  // ascending, without empty buckets
  std::vector<TokenInput> inputs;

  Json to_json() const;
  static TokenSummary from_json(const Json& json);
  /// "980 rows, 120 k tokens (64 k with loss), longest 2048; cut 3; dropped 2 without target, ..."
  std::string describe() const;
};

struct TokenRowView {
  std::span<const int32_t> ids;
  std::span<const uint8_t> targets;  // 1 where the token has loss; never in position 0
  uint32_t num_targets = 0;
  uint32_t input = 0;  // index of the data set
  uint64_t line = 0;   // physical line in it
  bool cut = false;
  /// The id where there is loss, kNoLoss elsewhere.
  std::vector<int32_t> labels() const;
};

enum class TokenFileCheck {
  kStructure,  // magic, version, sizes, table
  kContent,    // and the checksum over all bytes
};

class TokenFile {
 public:
  /// Error(kMissingPath); Error(kBadData) when the file is broken or of another version.
  static TokenFile open(const std::string& path, TokenFileCheck check = TokenFileCheck::kStructure);

  size_t num_rows() const { return num_rows_; }
  TokenRowView row(size_t index) const;
  uint32_t row_length(size_t index) const;
  uint32_t row_targets(size_t index) const;
  uint64_t num_tokens() const { return summary_.num_tokens; }
  uint64_t num_targets() const { return summary_.num_targets; }
  const TokenSummary& summary() const { return summary_; }
  /// Hash of data, tokenizer, template and options that the file was made from.
  const std::string& inputs_hash() const { return inputs_hash_; }
  /// Everything that is known about how it was made.
  const Json& info() const { return info_; }

 private:
  explicit TokenFile(const std::string& path) : file_(path) {}

  MappedFile file_;
  size_t num_rows_ = 0;
  uint64_t table_offset_ = 0;
  std::string inputs_hash_;
  Json info_;
  TokenSummary summary_;
};

/// Bad rows: kRefuse makes nothing when there is one, kSkip leaves them out and counts them (files
/// that are bad as a whole are refused in any case).
enum class BadRows { kRefuse, kSkip };

struct PrepareOptions {
  BadRows bad_rows = BadRows::kRefuse;
  DatasetOptions dataset;
  // That convert rows; the result does not depend on it. 0: what this process may use.
  size_t num_threads = 0;
};

struct PrepareResult {
  TokenSummary summary;
  std::vector<std::string> paths;      // of the data sets
  std::vector<DatasetReport> reports;  // of each, with the faults that conversion found
  std::string inputs_hash;
  /// Line and index in `paths` of the first rows without a target, a few at most; empty when
  /// reused.
  std::vector<std::pair<uint64_t, size_t>> first_without_target;
  bool reused = false;  // the file was there already, made from the same inputs
  bool ok = false;      // a file is there (or would be, for a dry run)
  /// Every fault with file, line and column, or why no row is left; empty when all is well.
  std::string message() const;
  /// Throws Error(kBadData) with message() when not ok.
  void require_ok() const;
};

/// Hash of all that decides the content of a token file.
std::string token_inputs_hash(const std::vector<std::string>& paths, const RowTokenizer& rows,
                              const PrepareOptions& options = {});

/// Checks all files, converts all rows and writes `output` atomically; reuses `output` when it was
/// made from the same inputs and is whole. An empty `output` only checks and counts. All faults of
/// all files are found in one pass; with faults (and kRefuse), or when no row is left, nothing is
/// written and the result is not ok. Error when a file cannot be read or `output` not written.
PrepareResult prepare_tokens(const std::vector<std::string>& paths, const RowTokenizer& rows,
                             const std::string& output, const PrepareOptions& options = {});

}  // namespace galley::text
