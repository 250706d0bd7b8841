// The unigram model: the most likely way to cut a piece into tokens (Viterbi), as SentencePiece.
#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "engine/text/tok_added.h"
#include "engine/text/tok_model.h"

namespace galley::text::internal {
namespace {

class Unigram final : public Model {
 public:
  explicit Unigram(const JsonField& field) {
    const JsonField vocab = field.at("vocab");
    if (!vocab.json().is_array()) vocab.broken("must be a list of [token, score]");
    for (const Json& entry : vocab.json().as_array()) {
      const bool fits = entry.is_array() && entry.as_array().size() == 2 &&
                        entry.as_array()[0].is_string() && entry.as_array()[1].is_number();
      if (!fits) vocab.broken(cat("entry ", scores_.size(), " must be [token, score]"));
      const std::string& token = entry.as_array()[0].as_string();
      starts_.add(token, scores_.size());
      vocabulary_.add(token, static_cast<int64_t>(scores_.size()), vocab);
      scores_.push_back(entry.as_array()[1].as_double());
      lowest_score_ = std::min(lowest_score_, scores_.back());
    }
    if (field.has("unk_id")) {
      const int64_t last = static_cast<int64_t>(scores_.size()) - 1;
      unknown_ = static_cast<int32_t>(field.at("unk_id").integer(0, last));
    }
    if (field.boolean_or("byte_fallback", false)) {
      has_fallback_ = true;
      for (size_t byte = 0; byte < 256; ++byte) {
        char name[8];
        std::snprintf(name, sizeof(name), "<0x%02X>", static_cast<unsigned>(byte));
        fallback_ids_[byte] = vocabulary_.find(name);
      }
    }
  }

  const Vocabulary& vocabulary() const override { return vocabulary_; }

  void tokenize(std::string_view piece, WordCache*, std::vector<ModelToken>* out) const override {
    const std::vector<Step> best = search(piece);
    // From the end to the front; neighbouring unknown characters are one.
    std::vector<ModelToken> parts;
    for (size_t end = piece.size(); end > 0; end = best[end].begin) {
      const Step& step = best[end];
      if (step.id == unknown_ && !parts.empty() && parts.back().id == unknown_) {
        parts.back().begin = static_cast<uint32_t>(step.begin);
      } else {
        parts.push_back({step.id, static_cast<uint32_t>(step.begin), static_cast<uint32_t>(end)});
      }
    }
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) write(piece, *part, out);
  }

 private:
  struct Step {
    size_t begin = kUnreached;
    double score = 0;
    int32_t id = -1;
  };
  static constexpr size_t kUnreached = static_cast<size_t>(-1);
  static constexpr double kUnknownPenalty = 10.0;

  // For each end the best last token.
  std::vector<Step> search(std::string_view piece) const {
    std::vector<Step> best(piece.size() + 1);
    for (size_t begin = 0; begin < piece.size();) {
      size_t after = begin;
      next_utf8(piece, &after);
      const double so_far = best[begin].score;
      const auto offer = [&](size_t end, double score, int32_t id) {
        Step& step = best[end];
        if (step.begin == kUnreached || so_far + score > step.score) {
          step = {begin, so_far + score, id};
        }
      };
      bool whole_character = false;
      starts_.for_each_prefix(piece.substr(begin), [&](size_t length, size_t id) {
        offer(begin + length, scores_[id], static_cast<int32_t>(id));
        whole_character = whole_character || begin + length == after;
      });
      if (!whole_character) {
        if (unknown_ < 0) {
          throw Error(Reason::kBadData, cat("the text has \"", piece.substr(begin, after - begin),
                                            "\", which the vocabulary lacks, and the tokenizer has "
                                            "no unknown token (unk_id)"));
        }
        offer(after, lowest_score_ - kUnknownPenalty, unknown_);
      }
      begin = after;
    }
    return best;
  }

  void write(std::string_view piece, const ModelToken& part, std::vector<ModelToken>* out) const {
    const std::string_view text = piece.substr(part.begin, part.end - part.begin);
    const int32_t id = vocabulary_.find(text);
    if (id >= 0) {
      out->push_back({id, part.begin, part.end});
      return;
    }
    const bool spelled = has_fallback_ && std::all_of(text.begin(), text.end(), [&](char byte) {
                           return fallback_ids_[static_cast<unsigned char>(byte)] >= 0;
                         });
    if (!spelled) {
      out->push_back({unknown_, part.begin, part.end});
      return;
    }
    for (const char byte : text) {
      out->push_back({fallback_ids_[static_cast<unsigned char>(byte)], part.begin, part.end});
    }
  }

  Vocabulary vocabulary_;
  StringSet starts_;
  std::vector<double> scores_;
  double lowest_score_ = std::numeric_limits<double>::infinity();
  int32_t unknown_ = -1;
  bool has_fallback_ = false;
  std::array<int32_t, 256> fallback_ids_{};
};

}  // namespace

std::unique_ptr<Model> read_unigram(const JsonField& field) {
  return std::make_unique<Unigram>(field);
}

}  // namespace galley::text::internal
