#include "engine/text/tok_post_processor.h"

#include <algorithm>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "engine/text/tok_text.h"

namespace galley::text::internal {
namespace {

void add_around(Draft* draft, const std::vector<int32_t>& before,
                const std::vector<int32_t>& after) {
  const auto extend = [&](auto* values, const auto& front, const auto& back) {
    values->insert(values->begin(), front.begin(), front.end());
    values->insert(values->end(), back.begin(), back.end());
  };
  draft->first += before.size();
  extend(&draft->encoding.ids, before, after);
  const std::vector<size_t> zeros_before(before.size());
  const std::vector<size_t> zeros_after(after.size());
  extend(&draft->encoding.begin, zeros_before, zeros_after);
  extend(&draft->encoding.end, zeros_before, zeros_after);
  if (draft->spellings.empty()) return;
  // Special tokens never start or end in a blank that would be trimmed off their empty offsets.
  extend(&draft->spellings, std::vector<std::string_view>(before.size()),
         std::vector<std::string_view>(after.size()));
}

bool is_blank(char32_t c) { return c == byte_to_alphabet(' ') || is_white_space(c); }

size_t leading_blanks(std::string_view spelling) {
  size_t count = 0;
  for (size_t offset = 0; offset < spelling.size(); ++count) {
    if (!is_blank(next_utf8(spelling, &offset))) break;
  }
  return count;
}

size_t trailing_blanks(std::string_view spelling) {
  size_t count = 0;
  for (size_t offset = 0; offset < spelling.size();) {
    count = is_blank(next_utf8(spelling, &offset)) ? count + 1 : 0;
  }
  return count;
}

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// Moves both ends of a token's offsets inwards past its blanks. The library counts characters.
void trim(std::string_view text, std::string_view spelling, bool is_first, bool add_prefix_space,
          size_t* begin, size_t* end) {
  size_t leading = leading_blanks(spelling);
  size_t trailing = trailing_blanks(spelling);
  // A single blank at the front is the one that add_prefix_space put there.
  if (leading == 1 && add_prefix_space && (is_first || *begin == 0)) leading = 0;
  for (; leading > 0 && *begin < *end; --leading) {
    do {
      ++*begin;
    } while (*begin < *end && is_continuation(text[*begin]));
  }
  for (; trailing > 0 && *end > *begin; --trailing) {
    do {
      --*end;
    } while (*end > *begin && is_continuation(text[*end]));
  }
}

void trim_all(Draft* draft, bool add_prefix_space) {
  for (size_t i = 0; i < draft->encoding.ids.size(); ++i) {
    trim(draft->text, draft->spellings[i], i == draft->first, add_prefix_space,
         &draft->encoding.begin[i], &draft->encoding.end[i]);
  }
}

class ByteLevel final : public PostProcessor {
 public:
  ByteLevel(bool trim_offsets, bool add_prefix_space)
      : trim_offsets_(trim_offsets), add_prefix_space_(add_prefix_space) {}
  bool needs_spellings() const override { return trim_offsets_; }
  void apply(Draft* draft, bool) const override {
    if (trim_offsets_) trim_all(draft, add_prefix_space_);
  }

 private:
  bool trim_offsets_;
  bool add_prefix_space_;
};

// TemplateProcessing, BertProcessing and RobertaProcessing: fixed tokens before and behind.
class Surround final : public PostProcessor {
 public:
  Surround(std::vector<int32_t> before, std::vector<int32_t> after)
      : before_(std::move(before)), after_(std::move(after)) {}
  bool adds_tokens() const override { return true; }
  void apply(Draft* draft, bool add_special_tokens) const override {
    if (add_special_tokens) add_around(draft, before_, after_);
  }

 private:
  std::vector<int32_t> before_;
  std::vector<int32_t> after_;
};

class Sequence final : public PostProcessor {
 public:
  explicit Sequence(std::vector<std::unique_ptr<PostProcessor>> steps) : steps_(std::move(steps)) {}
  bool needs_spellings() const override {
    return std::any_of(steps_.begin(), steps_.end(),
                       [](const auto& step) { return step->needs_spellings(); });
  }
  bool adds_tokens() const override {
    return std::any_of(steps_.begin(), steps_.end(),
                       [](const auto& step) { return step->adds_tokens(); });
  }
  void apply(Draft* draft, bool add_special_tokens) const override {
    for (const auto& step : steps_) step->apply(draft, add_special_tokens);
  }

 private:
  std::vector<std::unique_ptr<PostProcessor>> steps_;
};

int32_t read_id(const JsonField& field) {
  return static_cast<int32_t>(field.integer(0, INT32_MAX));
}

// The id of ["</s>", 2].
int32_t read_pair_id(const JsonField& field) {
  const std::vector<JsonField> pair = field.items();
  if (pair.size() != 2) field.broken("must be [token, id]");
  pair[0].string();
  return read_id(pair[1]);
}

std::unique_ptr<PostProcessor> read_template(const JsonField& field) {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
  bool seen = false;
  for (const JsonField& item : field.at("single").items()) {
    if (item.has("SpecialToken")) {
      const std::string& name = item.at("SpecialToken").at("id").string();
      const JsonField tokens = field.at("special_tokens").at(name).at("ids");
      for (const JsonField& id : tokens.items()) (seen ? after : before).push_back(read_id(id));
    } else if (item.has("Sequence")) {
      const JsonField id = item.at("Sequence").at("id");
      if (id.string() != "A") id.broken("a template for one text must name the sequence A");
      if (seen) item.unsupported("a template that repeats the text is not supported");
      seen = true;
    } else {
      item.broken("must be {\"SpecialToken\": ...} or {\"Sequence\": ...}");
    }
  }
  if (!seen) field.at("single").unsupported("a template without the text is not supported");
  return std::make_unique<Surround>(std::move(before), std::move(after));
}

std::unique_ptr<PostProcessor> read_roberta(const JsonField& field) {
  std::vector<std::unique_ptr<PostProcessor>> steps;
  steps.push_back(std::make_unique<ByteLevel>(field.at("trim_offsets").boolean(),
                                              field.at("add_prefix_space").boolean()));
  steps.push_back(std::make_unique<Surround>(std::vector{read_pair_id(field.at("cls"))},
                                             std::vector{read_pair_id(field.at("sep"))}));
  return std::make_unique<Sequence>(std::move(steps));
}

}  // namespace

std::unique_ptr<PostProcessor> read_post_processor(const JsonField& field) {
  const std::string& type = field.at("type").string();
  if (type == "Sequence") {
    std::vector<std::unique_ptr<PostProcessor>> steps;
    bool added = false;
    for (const JsonField& item : field.at("processors").items()) {
      steps.push_back(read_post_processor(item));
      if (added && steps.back()->adds_tokens()) {
        item.unsupported("a second processor that adds tokens is not supported by this version");
      }
      added = added || steps.back()->adds_tokens();
    }
    return std::make_unique<Sequence>(std::move(steps));
  }
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevel>(field.at("trim_offsets").boolean(),
                                       field.at("add_prefix_space").boolean());
  }
  if (type == "TemplateProcessing") return read_template(field);
  if (type == "BertProcessing") {
    return std::make_unique<Surround>(std::vector{read_pair_id(field.at("cls"))},
                                      std::vector{read_pair_id(field.at("sep"))});
  }
  if (type == "RobertaProcessing") return read_roberta(field);
  field.unsupported("the post-processor type \"" + type +
                    "\" is not supported by this version; supported: ByteLevel, "
                    "TemplateProcessing, BertProcessing, RobertaProcessing, Sequence");
}

}  // namespace galley::text::internal
