#include "engine/text/chat_template_marks.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "engine/core/strings.h"

namespace galley::text {

namespace {

/// Special tokens by their first byte, longest first.
using TokenTable = std::map<char, std::vector<std::string_view>>;

TokenTable make_table(const std::vector<std::string>& tokens) {
  TokenTable table;
  for (const std::string& token : tokens) {
    if (!token.empty()) table[token[0]].push_back(token);
  }
  for (auto& row : table) {
    std::stable_sort(row.second.begin(), row.second.end(),
                     [](std::string_view a, std::string_view b) { return a.size() > b.size(); });
  }
  return table;
}

size_t token_at(std::string_view text, size_t at, const TokenTable& table) {
  const auto row = table.find(text[at]);
  if (row == table.end()) return 0;
  for (const std::string_view token : row->second) {
    if (text.substr(at, token.size()) == token) return token.size();
  }
  return 0;
}

std::string mark_text(const std::string& text, const TokenTable& table, const ControlMarks& marks) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t size = token_at(text, at, table);
    if (size == 0) {
      out += text[at++];
      continue;
    }
    out += marks.open;
    out.append(text, at, size);
    out += marks.close;
    at += size;
  }
  return out;
}

Json mark_value(const Json& value, const TokenTable& table, const ControlMarks& marks) {
  if (value.is_string()) return Json(mark_text(value.as_string(), table, marks));
  if (value.is_array()) {
    Json::Array items;
    for (const Json& item : value.as_array()) items.push_back(mark_value(item, table, marks));
    return Json(std::move(items));
  }
  if (value.is_object()) {
    Json::Object members;
    for (const auto& [key, member] : value.as_object()) {
      members.emplace_back(key, mark_value(member, table, marks));
    }
    return Json(std::move(members));
  }
  return value;
}

// Noncharacters and private characters, the ones that could serve as marks.
void collect_from_text(std::string_view text, std::set<char32_t>* used) {
  for (size_t offset = 0; offset < text.size();) {
    if (static_cast<unsigned char>(text[offset]) < 0xEF) {  // below U+F000
      ++offset;
      continue;
    }
    const char32_t c = next_utf8(text, &offset);
    if ((c >= 0xFDD0 && c <= 0xFDEF) || c >= 0xF0000) used->insert(c);
  }
}

void collect_candidates(const Json& value, std::set<char32_t>* used) {
  if (value.is_string()) collect_from_text(value.as_string(), used);
  if (value.is_array()) {
    for (const Json& item : value.as_array()) collect_candidates(item, used);
  }
  if (value.is_object()) {
    for (const auto& [key, member] : value.as_object()) {
      collect_from_text(key, used);
      collect_candidates(member, used);
    }
  }
}

/// Removes marks and remembers where old offsets went.
class MarkRemover {
 public:
  MarkRemover(const ControlMarks& marks, RenderedChat* chat) : marks_(marks), chat_(chat) {}

  void run() {
    const std::string source = std::move(chat_->text);
    chat_->text.clear();
    for (size_t at = 0; at < source.size();) {
      const bool opens = source.compare(at, marks_.open.size(), marks_.open) == 0;
      const bool closes = !opens && source.compare(at, marks_.close.size(), marks_.close) == 0;
      if (!opens && !closes) {
        chat_->text += source[at++];
        continue;
      }
      mark(opens);
      at += opens ? marks_.open.size() : marks_.close.size();
      removed_.emplace_back(at, at - chat_->text.size());
    }
    if (is_open_) add_break(opened_);
    std::sort(chat_->text_breaks.begin(), chat_->text_breaks.end());
    for (auto& [begin, end] : chat_->assistant_spans) {
      begin = moved(begin);
      end = moved(end);
    }
  }

 private:
  // At the end of the text so far: a mark. One whose partner is gone still breaks the text.
  void mark(bool opens) {
    const size_t here = chat_->text.size();
    if (!opens && is_open_ && opened_ < here) {
      finish(opened_);
      is_open_ = false;
      return;
    }
    if (is_open_) add_break(opened_);
    if (!opens) add_break(here);
    is_open_ = opens;
    opened_ = here;
  }

  void add_break(size_t offset) { chat_->text_breaks.push_back(offset); }

  // A string that came through whole: a break behind its first character, or inside of that where
  // there is only one.
  void finish(size_t begin) {
    const size_t end = chat_->text.size();
    size_t offset = begin;
    next_utf8(chat_->text, &offset);
    add_break(offset < end ? offset : begin + 1);
    chat_->plain_strings.emplace_back(begin, end);
  }

  // An offset of the marked text in the text without marks.
  size_t moved(size_t offset) const {
    const auto after = std::upper_bound(
        removed_.begin(), removed_.end(), offset,
        [](size_t value, const std::pair<size_t, size_t>& entry) { return value < entry.first; });
    return after == removed_.begin() ? offset : offset - std::prev(after)->second;
  }

  const ControlMarks& marks_;
  RenderedChat* chat_;
  bool is_open_ = false;
  size_t opened_ = 0;                               // where the open string began
  std::vector<std::pair<size_t, size_t>> removed_;  // (offset behind a mark, bytes gone so far)
};

}  // namespace

ControlMarks choose_marks(const std::vector<const Json*>& inputs, const std::string& source) {
  std::set<char32_t> used;
  collect_from_text(source, &used);
  for (const Json* input : inputs) {
    if (input != nullptr) collect_candidates(*input, &used);
  }
  std::vector<char32_t> free;
  for (char32_t c = 0xFDD0; free.size() < 2; c = c == 0xFDEF ? 0xF0000 : c + 1) {
    if (!used.contains(c)) free.push_back(c);
  }
  ControlMarks marks;
  append_utf8(&marks.open, free[0]);
  append_utf8(&marks.close, free[1]);
  return marks;
}

Json mark_control_strings(const Json& value, const std::vector<std::string>& tokens,
                          const ControlMarks& marks) {
  return mark_value(value, make_table(tokens), marks);
}

void take_marks(const ControlMarks& marks, RenderedChat* chat) { MarkRemover(marks, chat).run(); }

}  // namespace galley::text
