// The models that look whole words up: WordLevel and WordPiece.
#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "engine/text/tok_model.h"

namespace galley::text::internal {
namespace {

int32_t read_unknown(const JsonField& field, const Vocabulary& vocabulary) {
  const std::string& unknown = field.at("unk_token").string();
  const int32_t id = vocabulary.find(unknown);
  if (id < 0) {
    field.at("unk_token").broken("the token \"" + unknown + "\" is not in the vocabulary");
  }
  return id;
}

class WordLevel final : public Model {
 public:
  explicit WordLevel(const JsonField& field)
      : vocabulary_(Vocabulary::read(field.at("vocab"))),
        unknown_(read_unknown(field, vocabulary_)) {}
  const Vocabulary& vocabulary() const override { return vocabulary_; }
  void tokenize(std::string_view piece, WordCache*, std::vector<ModelToken>* out) const override {
    const int32_t id = vocabulary_.find(piece);
    out->push_back({id >= 0 ? id : unknown_, 0, static_cast<uint32_t>(piece.size())});
  }

 private:
  Vocabulary vocabulary_;
  int32_t unknown_;
};

// Takes the longest token from the front again and again; a word that does not come out is unknown.
class WordPiece final : public Model {
 public:
  explicit WordPiece(const JsonField& field)
      : vocabulary_(Vocabulary::read(field.at("vocab"))),
        unknown_(read_unknown(field, vocabulary_)),
        prefix_(field.at("continuing_subword_prefix").string()),
        longest_word_(
            static_cast<size_t>(field.at("max_input_chars_per_word").integer(0, INT32_MAX))) {}

  const Vocabulary& vocabulary() const override { return vocabulary_; }

  void tokenize(std::string_view piece, WordCache*, std::vector<ModelToken>* out) const override {
    const size_t first = out->size();
    if (!take_all(piece, out)) {
      out->resize(first);
      out->push_back({unknown_, 0, static_cast<uint32_t>(piece.size())});
    }
  }

 private:
  bool take_all(std::string_view piece, std::vector<ModelToken>* out) const {
    size_t characters = 0;
    for (const char byte : piece) characters += (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
    if (characters > longest_word_) return false;
    for (size_t begin = 0; begin < piece.size();) {
      size_t end = piece.size();
      int32_t id = -1;
      while (end > begin) {
        const std::string_view part = piece.substr(begin, end - begin);
        id = vocabulary_.find(begin > 0 ? cat(prefix_, part) : std::string(part));
        if (id >= 0) break;
        do {
          --end;
        } while (end > begin && (static_cast<unsigned char>(piece[end]) & 0xC0) == 0x80);
      }
      if (id < 0) return false;
      out->push_back({id, static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
      begin = end;
    }
    return true;
  }

  Vocabulary vocabulary_;
  int32_t unknown_;
  std::string prefix_;
  size_t longest_word_;
};

}  // namespace

std::unique_ptr<Model> read_word_piece(const JsonField& field) {
  return std::make_unique<WordPiece>(field);
}

std::unique_ptr<Model> read_word_level(const JsonField& field) {
  return std::make_unique<WordLevel>(field);
}

}  // namespace galley::text::internal
