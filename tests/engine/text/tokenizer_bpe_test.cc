// Byte pair encoding beside the plainest way to do it: whatever cuts, queues and filters are used
// inside, the ids are those of merging the best pair again and again.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/json.h"
#include "engine/core/random.h"
#include "engine/core/strings.h"
#include "engine/text/tokenizer.h"

namespace galley::text {
namespace {

const std::vector<std::string> kLetters = {"a", "b", "c", "\xC3\xA9", "\xE2\x96\x81"};

struct Vocabulary {
  std::vector<std::string> tokens = {"?"};  // by id
  std::vector<std::pair<std::string, std::string>> merges;
};

enum class Order { kTrained, kShuffled };

/// Merges of tokens that were there before, as training makes them; shuffled ones need parts that
/// only later merges make.
Vocabulary make_vocabulary(Random* draw, size_t count, Order order) {
  Vocabulary out;
  out.tokens.insert(out.tokens.end(), kLetters.begin(), kLetters.end());
  for (size_t tries = 0; out.merges.size() < count && tries < 50 * count; ++tries) {
    const std::string left = out.tokens[1 + draw->below(out.tokens.size() - 1)];
    const std::string right = out.tokens[1 + draw->below(out.tokens.size() - 1)];
    const std::string made = left + right;
    const bool known = std::find(out.tokens.begin(), out.tokens.end(), made) != out.tokens.end();
    if (known || made.size() > 12) continue;
    out.tokens.push_back(made);
    out.merges.emplace_back(left, right);
  }
  if (order == Order::kShuffled) {
    for (size_t i = out.merges.size(); i > 1; --i) {
      std::swap(out.merges[i - 1], out.merges[draw->below(i)]);
    }
  }
  return out;
}

Tokenizer make_tokenizer(const Vocabulary& vocabulary, bool fuse) {
  Json ids = Json::object();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    ids.set(vocabulary.tokens[id], static_cast<int64_t>(id));
  }
  Json merges = Json::array();
  for (const auto& [left, right] : vocabulary.merges) {
    merges.push(Json(Json::Array{Json(left), Json(right)}));
  }
  Json model = Json::object();
  model.set("type", "BPE").set("unk_token", "?").set("fuse_unk", fuse);
  model.set("vocab", std::move(ids)).set("merges", std::move(merges));
  return Tokenizer::parse(Json::object().set("model", std::move(model)).dump(), "test");
}

std::vector<int32_t> plainest(const Vocabulary& vocabulary, bool fuse, const std::string& text) {
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  for (size_t i = 0; i < vocabulary.merges.size(); ++i) ranks[vocabulary.merges[i]] = i;
  std::vector<std::string> parts;
  for (size_t offset = 0; offset < text.size();) {
    const size_t begin = offset;
    next_utf8(text, &offset);
    std::string letter = text.substr(begin, offset - begin);
    const bool known = std::find(kLetters.begin(), kLetters.end(), letter) != kLetters.end();
    if (!known && fuse && !parts.empty() && parts.back() == "?") continue;
    parts.push_back(known ? letter : "?");
  }
  while (true) {
    size_t best = parts.size(), best_rank = vocabulary.merges.size();
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find({parts[i], parts[i + 1]});
      if (found != ranks.end() && found->second < best_rank) {
        best = i;
        best_rank = found->second;
      }
    }
    if (best == parts.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
  std::vector<int32_t> ids;
  for (const std::string& part : parts) {
    const auto at = std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), part);
    ids.push_back(static_cast<int32_t>(at - vocabulary.tokens.begin()));
  }
  return ids;
}

TEST(TokenizerBpe, equals_the_plainest_way) {
  Random draw(1, random_stream("bpe test"));
  std::vector<std::string> letters = kLetters;
  letters.push_back("z");  // unknown
  for (int round = 0; round < 60; ++round) {
    const Order order = round % 2 == 0 ? Order::kTrained : Order::kShuffled;
    const bool fuse = round % 3 == 0;
    const Vocabulary vocabulary = make_vocabulary(&draw, 2 + draw.below(40), order);
    const Tokenizer tokenizer = make_tokenizer(vocabulary, fuse);
    for (int k = 0; k < 20; ++k) {
      std::string text;
      const size_t wanted = k < 10 ? draw.below(30) : draw.below(250);
      for (size_t i = 0; i < wanted; ++i) {
        // The last letter is rare; runs of one letter are not.
        const std::string& letter = letters[draw.below(k % 4 == 0 ? 2 : letters.size())];
        text += letter == "z" && draw.below(4) != 0 ? "a" : letter;
      }
      const Encoding encoding = tokenizer.encode(text);
      ASSERT_EQ(encoding.ids, plainest(vocabulary, fuse, text))
          << "round " << round << ": " << text;
      // What the tokens cover is the text, in order and without a gap.
      size_t at = 0;
      for (size_t i = 0; i < encoding.ids.size(); ++i) {
        EXPECT_EQ(encoding.begin[i], at);
        at = encoding.end[i];
      }
      EXPECT_EQ(at, text.size());
    }
  }
}

}  // namespace
}  // namespace galley::text
