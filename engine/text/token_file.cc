#include "engine/text/token_file.h"

#include <cstddef>
#include <cstring>

#include "engine/core/error.h"
#include "engine/core/hash.h"
#include "engine/core/strings.h"
#include "engine/text/token_file_format.h"

namespace galley::text {
namespace {

using token_format::Footer;
using token_format::Header;
using token_format::TableEntry;

[[noreturn]] void broken(const std::string& path, std::string_view why) {
  throw Error(Reason::kBadData, cat("token file ", path, " is broken (", why,
                                    "); delete it, the next start makes it again"));
}

Footer read_footer(const MappedFile& file, const std::string& path) {
  if (file.size() < sizeof(Header) + sizeof(Footer)) broken(path, "too short");
  Header header;
  std::memcpy(&header, file.bytes(), sizeof header);
  if (std::memcmp(header.magic, token_format::kMagic, sizeof header.magic) != 0) {
    broken(path, "not a token file");
  }
  if (header.version != token_format::kVersion) {
    throw Error(Reason::kBadData,
                cat("token file ", path, " has version ", header.version, ", this program reads ",
                    token_format::kVersion, "; delete it, the next start makes it again"));
  }
  Footer footer;
  std::memcpy(&footer, file.bytes() + file.size() - sizeof footer, sizeof footer);
  if (std::memcmp(footer.magic, token_format::kMagic, sizeof footer.magic) != 0 ||
      footer.footer_hash != hash64(&footer, offsetof(Footer, footer_hash)) ||
      footer.file_bytes != file.size()) {
    broken(path, "its end is missing or changed");
  }
  const uint64_t end = file.size() - sizeof footer;
  if (footer.table_offset > end || footer.num_rows > end / sizeof(TableEntry) ||
      footer.table_offset + footer.num_rows * sizeof(TableEntry) != footer.info_offset ||
      footer.info_bytes > end || footer.info_offset + footer.info_bytes != end) {
    broken(path, "sections do not fit");
  }
  return footer;
}

TableEntry entry_at(const MappedFile& file, uint64_t table_offset, size_t index) {
  TableEntry entry;
  std::memcpy(&entry, file.bytes() + table_offset + index * sizeof entry, sizeof entry);
  return entry;
}

// Every row lies whole between header and table, in order, without gaps.
void check_table(const MappedFile& file, const Footer& footer, const std::string& path) {
  uint64_t offset = sizeof(Header), tokens = 0, targets = 0;
  for (uint64_t i = 0; i < footer.num_rows; ++i) {
    const TableEntry entry = entry_at(file, footer.table_offset, i);
    if (entry.offset != offset || entry.num_targets > entry.length) broken(path, "row table");
    offset += token_format::row_bytes(entry.length);
    tokens += entry.length;
    targets += entry.num_targets;
  }
  if (offset != footer.table_offset || tokens != footer.num_tokens ||
      targets != footer.num_targets) {
    broken(path, "row table");
  }
}

}  // namespace

std::vector<int32_t> TokenRowView::labels() const {
  std::vector<int32_t> out(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) out[i] = targets[i] != 0 ? ids[i] : kNoLoss;
  return out;
}

TokenFile TokenFile::open(const std::string& path, TokenFileCheck check) {
  TokenFile out(path);
  const Footer footer = read_footer(out.file_, path);
  if (check == TokenFileCheck::kContent &&
      hash128_hex(out.file_.bytes(), out.file_.size() - sizeof footer) !=
          std::string_view(footer.content_hash, sizeof footer.content_hash)) {
    broken(path, "its checksum differs");
  }
  check_table(out.file_, footer, path);
  out.num_rows_ = footer.num_rows;
  out.table_offset_ = footer.table_offset;
  try {
    out.info_ = parse_json_or_throw(out.file_.text().substr(footer.info_offset, footer.info_bytes),
                                    path, Reason::kBadData);
    out.inputs_hash_ = out.info_.at("inputs_hash").as_string();
    out.summary_ = TokenSummary::from_json(out.info_.at("summary"));
  } catch (const Error&) {
    broken(path, "its description cannot be read");
  }
  return out;
}

uint32_t TokenFile::row_length(size_t index) const {
  GALLEY_CHECK(index < num_rows_);
  return entry_at(file_, table_offset_, index).length;
}

uint32_t TokenFile::row_targets(size_t index) const {
  GALLEY_CHECK(index < num_rows_);
  return entry_at(file_, table_offset_, index).num_targets;
}

TokenRowView TokenFile::row(size_t index) const {
  GALLEY_CHECK(index < num_rows_);
  const TableEntry entry = entry_at(file_, table_offset_, index);
  const std::byte* bytes = file_.bytes() + entry.offset;
  TokenRowView view;
  view.ids = {reinterpret_cast<const int32_t*>(bytes), entry.length};
  view.targets = {reinterpret_cast<const uint8_t*>(bytes) + uint64_t{entry.length} * 4,
                  entry.length};
  view.num_targets = entry.num_targets;
  view.input = entry.input;
  view.line = entry.line;
  view.cut = (entry.flags & token_format::kFlagCut) != 0;
  return view;
}

Json TokenSummary::to_json() const {
  Json buckets = Json::array();
  for (const LengthBucket& bucket : histogram) {
    buckets.push(Json::object()
                     .set("upper", bucket.upper)
                     .set("rows", bucket.num_rows)
                     .set("tokens", bucket.num_tokens));
  }
  Json files = Json::array();
  for (const TokenInput& input : inputs) {
    files.push(Json::object().set("path", input.path).set("rows", input.num_rows));
  }
  return Json::object()
      .set("rows", num_rows)
      .set("tokens", num_tokens)
      .set("targets", num_targets)
      .set("cut", num_cut)
      .set("no_target", num_no_target)
      .set("no_target_after_truncation", num_no_target_after_truncation)
      .set("bad", num_bad)
      .set("longest", longest)
      .set("highest_id", highest_id)
      .set("histogram", std::move(buckets))
      .set("inputs", std::move(files));
}

TokenSummary TokenSummary::from_json(const Json& json) {
  const auto number = [](const Json& from, const char* key) {
    return static_cast<uint64_t>(from.at(key).as_int());
  };
  TokenSummary out;
  out.num_rows = number(json, "rows");
  out.num_tokens = number(json, "tokens");
  out.num_targets = number(json, "targets");
  out.num_cut = number(json, "cut");
  out.num_no_target = number(json, "no_target");
  out.num_no_target_after_truncation = number(json, "no_target_after_truncation");
  out.num_bad = number(json, "bad");
  out.longest = number(json, "longest");
  out.highest_id = json.at("highest_id").as_int();
  for (const Json& bucket : json.at("histogram").as_array()) {
    out.histogram.push_back(
        {number(bucket, "upper"), number(bucket, "rows"), number(bucket, "tokens")});
  }
  for (const Json& input : json.at("inputs").as_array()) {
    out.inputs.push_back({input.at("path").as_string(), number(input, "rows")});
  }
  return out;
}

std::string TokenSummary::describe() const {
  std::vector<std::string> notes;
  if (num_cut > 0) notes.push_back(cat(num_cut, " cut"));
  if (num_no_target > 0) notes.push_back(cat(num_no_target, " dropped without target"));
  if (num_no_target_after_truncation > 0) {
    notes.push_back(
        cat(num_no_target_after_truncation, " dropped without target after truncation"));
  }
  if (num_bad > 0) notes.push_back(cat(num_bad, " bad rows skipped"));
  return cat(num_rows, num_rows == 1 ? " row, " : " rows, ",
             format_count(static_cast<double>(num_tokens)), " tokens (",
             format_count(static_cast<double>(num_targets)), " with loss), longest ", longest,
             notes.empty() ? "" : "; ", join(notes, ", "));
}

}  // namespace galley::text
