#include "engine/text/tok_normalizer.h"

#include <utility>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::text::internal {

Pattern::Pattern(const JsonField& field) {
  if (field.has("String")) {
    string_ = field.at("String").string();
    // An empty string matches between all characters, which only the regular expression can say.
    if (string_.empty()) regex_ = std::make_unique<Regex>("", field.where());
  } else if (field.has("Regex")) {
    const JsonField regex = field.at("Regex");
    regex_ = std::make_unique<Regex>(regex.string(), regex.where());
  } else {
    field.broken("a pattern must be {\"String\": ...} or {\"Regex\": ...}");
  }
}

void Pattern::find_all(std::string_view text, std::vector<ByteRange>* out) const {
  if (regex_) {
    regex_->find_all(text, out);
  } else {
    find_string(text, string_, out);
  }
}

namespace {

// Drops the characters that `keep` refuses; a kept one counts the dropped ones behind it.
template <typename Keep>
void filter(AlignedText* text, Keep keep) {
  std::vector<Change> changes;
  size_t removed_first = 0;
  bool any = false;
  for (size_t offset = 0; offset < text->size();) {
    const char32_t c = next_utf8(text->view(), &offset);
    if (keep(c)) {
      changes.push_back({c, 0});
      continue;
    }
    any = true;
    if (changes.empty()) {
      ++removed_first;
    } else {
      --changes.back().delta;
    }
  }
  if (any) text->transform(changes, removed_first);
}

// Puts map(c) in place of every character c.
template <typename Map>
void map_characters(AlignedText* text, Map map) {
  std::vector<Change> changes;
  bool any = false;
  for (size_t offset = 0; offset < text->size();) {
    const char32_t c = next_utf8(text->view(), &offset);
    changes.push_back({map(c), 0});
    any = any || changes.back().c != c;
  }
  if (any) text->transform(changes, 0);
}

class UnicodeForm final : public Normalizer {
 public:
  explicit UnicodeForm(NormalForm form) : form_(form) {}
  void apply(AlignedText* text) const override { text->normalize(form_); }

 private:
  NormalForm form_;
};

void make_lower(AlignedText* text) {
  std::vector<Change> changes;
  std::u32string lower;
  for (size_t offset = 0; offset < text->size();) {
    lower.clear();
    append_lower(next_utf8(text->view(), &offset), &lower);
    for (size_t i = 0; i < lower.size(); ++i) changes.push_back({lower[i], i == 0 ? 0 : 1});
  }
  text->transform(changes, 0);
}

class Lowercase final : public Normalizer {
 public:
  void apply(AlignedText* text) const override { make_lower(text); }
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(AlignedText* text) const override {
    std::vector<Change> changes;
    size_t removed_first = 0;
    size_t kept = 0;  // changes up to the last character that stays
    size_t trailing = 0;
    for (size_t offset = 0; offset < text->size();) {
      const char32_t c = next_utf8(text->view(), &offset);
      const bool blank = is_white_space(c);
      if (left_ && blank && changes.empty()) {
        ++removed_first;
        continue;
      }
      changes.push_back({c, 0});
      if (blank && right_) {
        ++trailing;
      } else {
        kept = changes.size();
        trailing = 0;
      }
    }
    if (removed_first == 0 && trailing == 0) return;
    changes.resize(kept);
    if (!changes.empty()) changes.back().delta = -static_cast<int>(trailing);
    text->transform(changes, removed_first);
  }

 private:
  bool left_;
  bool right_;
};

class StripAccents final : public Normalizer {
 public:
  void apply(AlignedText* text) const override {
    filter(text, [](char32_t c) { return !is_combining_mark(c); });
  }
};

// The cleaning of Google's neural machine translation, as SentencePiece has it.
class Nmt final : public Normalizer {
 public:
  void apply(AlignedText* text) const override {
    filter(text, [](char32_t c) {
      return !((c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F ||
               c == 0x8F || c == 0x9F);
    });
    map_characters(text, [](char32_t c) {
      const bool blank = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                         (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 ||
                         c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
      return blank ? U' ' : c;
    });
  }
};

class Replace final : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(AlignedText* text) const override {
    std::vector<ByteRange> matches;
    pattern_.find_all(text->view(), &matches);
    text->replace(matches, content_);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(AlignedText* text) const override { text->prepend(prefix_); }

 private:
  std::string prefix_;
};

class ByteLevel final : public Normalizer {
 public:
  void apply(AlignedText* text) const override {
    std::vector<Change> changes;
    const std::string_view view = text->view();
    for (size_t i = 0; i < view.size(); ++i) {
      const unsigned char byte = static_cast<unsigned char>(view[i]);
      changes.push_back({byte_to_alphabet(byte), (byte & 0xC0) == 0x80 ? 1 : 0});
    }
    text->transform(changes, 0);
  }
};

class BertNormalizer final : public Normalizer {
 public:
  BertNormalizer(bool clean, bool space_ideographs, bool strip_accents, bool lowercase)
      : clean_(clean),
        space_ideographs_(space_ideographs),
        strip_accents_(strip_accents),
        lowercase_(lowercase) {}

  void apply(AlignedText* text) const override {
    if (clean_) {
      filter(text, [](char32_t c) { return c != 0 && c != 0xFFFD && !is_control(c); });
      map_characters(text, [](char32_t c) { return is_white_space(c) ? U' ' : c; });
    }
    if (space_ideographs_) put_blanks_around_ideographs(text);
    if (strip_accents_) {
      text->normalize(NormalForm::kNfd);
      filter(text, [](char32_t c) { return !is_nonspacing_mark(c); });
    }
    if (lowercase_) make_lower(text);
  }

 private:
  static void put_blanks_around_ideographs(AlignedText* text) {
    std::vector<Change> changes;
    for (size_t offset = 0; offset < text->size();) {
      const char32_t c = next_utf8(text->view(), &offset);
      if (is_cjk_ideograph(c)) {
        changes.insert(changes.end(), {{U' ', 0}, {c, 1}, {U' ', 1}});
      } else {
        changes.push_back({c, 0});
      }
    }
    text->transform(changes, 0);
  }

  bool clean_;
  bool space_ideographs_;
  bool strip_accents_;
  bool lowercase_;
};

class Sequence final : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  void apply(AlignedText* text) const override {
    for (const auto& step : steps_) step->apply(text);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

std::unique_ptr<Normalizer> read_bert(const JsonField& field) {
  const bool lowercase = field.at("lowercase").boolean();
  return std::make_unique<BertNormalizer>(field.at("clean_text").boolean(),
                                          field.at("handle_chinese_chars").boolean(),
                                          field.boolean_or("strip_accents", lowercase), lowercase);
}

}  // namespace

std::unique_ptr<Normalizer> read_normalizer(const JsonField& field) {
  const std::string& type = field.at("type").string();
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Normalizer>> steps;
    for (const JsonField& item : field.at("normalizers").items()) {
      steps.push_back(read_normalizer(item));
    }
    return std::make_unique<Sequence>(std::move(steps));
  }
  if (type == "NFC") return std::make_unique<UnicodeForm>(NormalForm::kNfc);
  if (type == "NFD") return std::make_unique<UnicodeForm>(NormalForm::kNfd);
  if (type == "NFKC") return std::make_unique<UnicodeForm>(NormalForm::kNfkc);
  if (type == "NFKD") return std::make_unique<UnicodeForm>(NormalForm::kNfkd);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "Strip") {
    return std::make_unique<Strip>(field.at("strip_left").boolean(),
                                   field.at("strip_right").boolean());
  }
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "Nmt") return std::make_unique<Nmt>();
  if (type == "Replace") {
    return std::make_unique<Replace>(Pattern(field.at("pattern")), field.at("content").string());
  }
  if (type == "Prepend") return std::make_unique<Prepend>(field.at("prepend").string());
  if (type == "ByteLevel") return std::make_unique<ByteLevel>();
  if (type == "BertNormalizer") return read_bert(field);
  field.unsupported("the normalizer type \"" + type +
                    "\" is not supported by this version; supported: NFC, NFD, NFKC, NFKD, "
                    "Lowercase, Strip, StripAccents, Nmt, Replace, Prepend, ByteLevel, "
                    "BertNormalizer, Sequence");
}

}  // namespace galley::text::internal
