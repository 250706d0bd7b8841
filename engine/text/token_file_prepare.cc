#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "engine/core/error.h"
#include "engine/core/hash.h"
#include "engine/core/processors.h"
#include "engine/core/strings.h"
#include "engine/text/dataset_line.h"
#include "engine/text/token_file.h"
#include "engine/text/token_file_format.h"

namespace galley::text {
namespace {

constexpr size_t kShownWithoutTarget = 5;

using token_format::Footer;
using token_format::Header;
using token_format::TableEntry;

// Everything that decides which tokens come out, as a record that is hashed and stored.
Json inputs_record(const std::vector<std::string>& content_hashes, const RowTokenizer& rows,
                   const PrepareOptions& options) {
  const RowOptions& row = rows.options();
  Json record = Json::object();
  Json contents = Json::array();
  for (const std::string& hash : content_hashes) contents.push(hash);
  Json named = Json::object();
  for (const auto& [name, text] : rows.special().named) named.set(name, text);
  Json strings = Json::array();
  for (const std::string& text : rows.special().strings) strings.push(text);
  record.set("version", static_cast<int64_t>(token_format::kVersion))
      .set("data", std::move(contents))
      .set("tokenizer", rows.tokenizer().hash())
      .set("special_tokens", std::move(named))
      .set("special_token_strings", std::move(strings))
      .set("loss", loss_name(row.loss))
      .set("truncation", truncation_name(row.truncation))
      .set("max_length", static_cast<uint64_t>(row.max_length))
      .set("special_strings", row.sanitize == Sanitize::kYes ? "text" : "special")
      .set("bad_rows", options.bad_rows == BadRows::kSkip ? "skip" : "refuse")
      .set("max_line_bytes", options.dataset.max_line_bytes);
  if (const ChatTemplate* chat = rows.chat_template()) {
    record.set("chat_template", chat->hash());
    // The clock matters to templates that print it, and to no others.
    if (chat->source().find("strftime_now") != std::string::npos) {
      std::tm now = row.local_now;
      char text[64];
      std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &now);
      record.set("now", text);
    }
  }
  return record;
}

// Writes rows one after the other through a buffer, then table, description and footer.
class TokenWriter {
 public:
  explicit TokenWriter(const std::string& path) : path_(path), file_(path) {
    Header header{};
    std::memcpy(header.magic, token_format::kMagic, sizeof header.magic);
    header.version = token_format::kVersion;
    append(&header, sizeof header);
  }

  void add(const TokenRow& row, const std::vector<uint8_t>& mask, TableEntry entry) {
    entry.offset = offset_;
    entry.length = static_cast<uint32_t>(row.ids.size());
    table_.push_back(entry);
    append(row.ids.data(), row.ids.size() * sizeof(int32_t));
    append(mask.data(), mask.size());
    constexpr char kZeros[8] = {};
    const uint64_t end = entry.offset + token_format::row_bytes(row.ids.size());
    append(kZeros, static_cast<size_t>(end - offset_));
  }

  void commit(const TokenSummary& summary, Json inputs, const std::string& inputs_hash) {
    Footer footer{};
    footer.num_rows = summary.num_rows;
    footer.num_tokens = summary.num_tokens;
    footer.num_targets = summary.num_targets;
    footer.table_offset = offset_;
    append(table_.data(), table_.size() * sizeof(TableEntry));
    footer.info_offset = offset_;
    const std::string info = Json::object()
                                 .set("inputs_hash", inputs_hash)
                                 .set("inputs", std::move(inputs))
                                 .set("summary", summary.to_json())
                                 .dump();
    append(info.data(), info.size());
    footer.info_bytes = info.size();
    footer.file_bytes = offset_ + sizeof footer;
    flush();
    std::memcpy(footer.content_hash, hash_.hex().data(), sizeof footer.content_hash);
    footer.footer_hash = hash64(&footer, offsetof(Footer, footer_hash));
    std::memcpy(footer.magic, token_format::kMagic, sizeof footer.magic);
    file_.write(&footer, sizeof footer);
    file_.commit(
        [](const std::string& temporary) { TokenFile::open(temporary, TokenFileCheck::kContent); });
  }

 private:
  void append(const void* bytes, size_t size) {
    buffer_.append(static_cast<const char*>(bytes), size);
    offset_ += size;
    if (buffer_.size() >= kBufferBytes) flush();
  }
  void flush() {
    hash_.update(buffer_);
    file_.write(buffer_);
    buffer_.clear();
  }

  static constexpr size_t kBufferBytes = size_t{1} << 20;
  std::string path_;
  AtomicFile file_;
  StreamHash hash_;
  std::string buffer_;
  uint64_t offset_ = 0;
  std::vector<TableEntry> table_;
};

// Calls work(index, thread) for 0 .. count-1 on some threads, each index once; rethrows the first
// failure.
void for_each_index(size_t count, size_t num_threads,
                    const std::function<void(size_t, size_t)>& work) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;  // guarded by mutex
  const auto run = [&](size_t thread) {
    try {
      for (size_t i = next++; i < count; i = next++) work(i, thread);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < std::min(num_threads, count); ++i) threads.emplace_back(run, i);
  run(0);
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

// One pass over all rows: counts them, and hands them to a writer while there is no fault.
class Preparer {
 public:
  Preparer(const RowTokenizer& rows, const PrepareOptions& options, PrepareResult* result)
      : rows_(rows),
        options_(options),
        result_(*result),
        parsers_(options.num_threads > 0 ? options.num_threads
                                         : static_cast<size_t>(useful_threads_here())) {}

  void read(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      datasets_.push_back(Dataset::read(path, options_.dataset));
      result_.paths.push_back(path);
      result_.reports.push_back(datasets_.back().report());
      result_.summary.num_bad += datasets_.back().report().num_faults;
    }
  }

  void convert(const std::string& output) {
    if (!output.empty() && writable()) writer_.emplace(output);
    for (size_t i = 0; i < datasets_.size(); ++i) {
      result_.summary.inputs.push_back({datasets_[i].path(), 0});
      for (size_t row = 0; row < datasets_[i].num_rows();) row = convert_some(i, row);
      DatasetReport& report = result_.reports[i];
      std::stable_sort(report.faults.begin(), report.faults.end(),
                       [](const RowFault& a, const RowFault& b) { return a.line < b.line; });
    }
    for (size_t k = 0; k < buckets_.size(); ++k) {
      if (buckets_[k].num_rows > 0) result_.summary.histogram.push_back(buckets_[k]);
    }
    result_.ok = writable() && result_.summary.num_rows > 0;
  }

  void commit(Json inputs) {
    if (writer_ && result_.ok) {
      writer_->commit(result_.summary, std::move(inputs), result_.inputs_hash);
    }
  }

 private:
  // Single bad rows may be skipped when asked, a file that is none of ours never.
  bool writable() const {
    if (result_.summary.num_bad == 0) return true;
    return options_.bad_rows == BadRows::kSkip &&
           std::none_of(result_.reports.begin(), result_.reports.end(),
                        [](const DatasetReport& report) {
                          return !report.faults.empty() && report.faults.front().line == 0;
                        });
  }

  void fault(size_t input, size_t row, RowProblem problem) {
    DatasetReport& report = result_.reports[input];
    ++report.num_faults;
    ++report.faults_by_kind[problem.kind];
    ++result_.summary.num_bad;
    if (report.faults.size() < options_.dataset.max_faults) {
      report.faults.push_back(
          {datasets_[input].line(row), 1, problem.kind, std::move(problem.text)});
    }
    if (!writable()) writer_.reset();  // the temporary goes, the counting goes on
  }

  // Converts rows from `first` on, as many as fit a bound of memory; returns the next one.
  size_t convert_some(size_t input, size_t first) {
    const Dataset& dataset = datasets_[input];
    size_t count = 0;
    uint64_t bytes = 0;
    for (size_t i = first; i < dataset.num_rows() && count < kMaxChunkRows &&
                           (count == 0 || bytes + dataset.row_bytes(i) <= kMaxChunkBytes);
         ++i) {
      bytes += dataset.row_bytes(i);
      ++count;
    }
    std::vector<RowResult> results(count);
    for_each_index(count, parsers_.size(), [&](size_t i, size_t thread) {
      results[i] =
          rows_.convert(dataset.row(first + i, &parsers_[thread]), dataset.form(first + i));
    });
    for (size_t i = 0; i < count; ++i) take(input, first + i, std::move(results[i]));
    return first + count;
  }

  void take(size_t input, size_t index, RowResult converted) {
    if (converted.problem) return fault(input, index, std::move(*converted.problem));
    const TokenRow& row = converted.row;
    if (!row.loss_weights.empty()) {
      return fault(input, index,
                   {FaultKind::kUnsupported,
                    "a loss_weight other than 0 and 1 is not supported by this version"});
    }
    std::vector<uint8_t> mask(row.labels.size());
    TableEntry entry{};
    // The label of the first token is never used: the loss compares each token with the one before.
    for (size_t i = 1; i < mask.size(); ++i) {
      mask[i] = row.labels[i] != kNoLoss ? 1 : 0;
      entry.num_targets += mask[i];
    }
    TokenSummary& summary = result_.summary;
    if (entry.num_targets == 0) {
      ++(row.cut ? summary.num_no_target_after_truncation : summary.num_no_target);
      if (result_.first_without_target.size() < kShownWithoutTarget) {
        result_.first_without_target.emplace_back(datasets_[input].line(index), input);
      }
      return;
    }
    entry.line = datasets_[input].line(index);
    entry.input = static_cast<uint32_t>(input);
    entry.flags = row.cut ? token_format::kFlagCut : 0;
    count(row.ids.size(), entry, row.cut);
    for (const int32_t id : row.ids) {
      summary.highest_id = std::max(summary.highest_id, int64_t{id});
    }
    if (writer_) writer_->add(row, mask, entry);
  }

  void count(uint64_t length, const TableEntry& entry, bool cut) {
    TokenSummary& summary = result_.summary;
    ++summary.num_rows;
    ++summary.inputs.back().num_rows;
    summary.num_tokens += length;
    summary.num_targets += entry.num_targets;
    summary.num_cut += cut ? 1 : 0;
    summary.longest = std::max(summary.longest, length);
    const auto k = static_cast<size_t>(std::bit_width(length - 1));
    if (buckets_.size() <= k) buckets_.resize(k + 1);
    buckets_[k].upper = uint64_t{1} << k;
    ++buckets_[k].num_rows;
    buckets_[k].num_tokens += length;
  }

  static constexpr size_t kMaxChunkRows = 4096;
  static constexpr uint64_t kMaxChunkBytes = uint64_t{8} << 20;

  const RowTokenizer& rows_;
  const PrepareOptions& options_;
  PrepareResult& result_;
  std::vector<Dataset> datasets_;
  std::vector<LengthBucket> buckets_;
  std::optional<TokenWriter> writer_;
  std::vector<LineParser> parsers_;  // of each thread that converts
};

std::vector<std::string> content_hashes(const std::vector<std::string>& paths) {
  std::vector<std::string> hashes;
  for (const std::string& path : paths) hashes.push_back(hash128_hex(MappedFile(path).text()));
  return hashes;
}

// Takes over what an earlier call made from the same inputs; false when it is not there or broken.
bool reuse(const std::string& output, PrepareResult* result) {
  if (output.empty() || !path_exists(output)) return false;
  try {
    const TokenFile file = TokenFile::open(output, TokenFileCheck::kContent);
    if (file.inputs_hash() != result->inputs_hash) return false;
    result->summary = file.summary();
  } catch (const Error& error) {
    if (error.reason() != Reason::kBadData) throw;
    return false;
  }
  result->reused = true;
  result->ok = true;
  return true;
}

}  // namespace

std::string PrepareResult::message() const {
  std::string out;
  if (ok) return out;
  for (size_t i = 0; i < reports.size(); ++i) {
    if (!reports[i].ok()) out += describe_faults(paths[i], reports[i]);
  }
  if (out.empty()) {
    out = cat(join(paths, ", "), ": no row is left to train on (", summary.num_no_target,
              " without target, ", summary.num_no_target_after_truncation,
              " without target after truncation)\n");
  }
  return out;
}

void PrepareResult::require_ok() const {
  if (ok) return;
  std::string text = message();
  while (text.ends_with('\n')) text.pop_back();
  throw Error(Reason::kBadData, text);
}

std::string token_inputs_hash(const std::vector<std::string>& paths, const RowTokenizer& rows,
                              const PrepareOptions& options) {
  return hash128_hex(inputs_record(content_hashes(paths), rows, options).dump());
}

PrepareResult prepare_tokens(const std::vector<std::string>& paths, const RowTokenizer& rows,
                             const std::string& output, const PrepareOptions& options) {
  PrepareResult result;
  Json inputs = inputs_record(content_hashes(paths), rows, options);
  result.inputs_hash = hash128_hex(inputs.dump());
  if (reuse(output, &result)) {
    result.paths = paths;
    return result;
  }
  Preparer preparer(rows, options, &result);
  preparer.read(paths);
  preparer.convert(output);
  preparer.commit(std::move(inputs));
  return result;
}

}  // namespace galley::text
