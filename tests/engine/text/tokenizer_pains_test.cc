// Pains that users of other programs reported, as far as the tokenizer owns them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/json.h"
#include "engine/core/strings.h"
#include "engine/text/tok_text.h"
#include "engine/text/tokenizer.h"
#include "tests/support/reference.h"

namespace galley::text {
namespace {

using Strings = std::vector<std::string>;

constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

// A byte-level tokenizer that takes whole pieces as tokens: each piece is in the vocabulary, so the
// tokens show how the text was cut. `pre_tokenizer` is its JSON.
Tokenizer cutter(const std::string& pre_tokenizer, const Strings& pieces, int64_t more = 0) {
  Json vocab = Json::object();
  for (int64_t byte = 0; byte < 256; ++byte) {
    std::string token;
    append_utf8(&token, internal::byte_to_alphabet(static_cast<unsigned char>(byte)));
    vocab.set(token, byte);
  }
  for (const std::string& piece : pieces) {
    std::string token;
    for (const char byte : piece) {
      append_utf8(&token, internal::byte_to_alphabet(static_cast<unsigned char>(byte)));
    }
    if (!vocab.contains(token)) vocab.set(token, static_cast<int64_t>(vocab.as_object().size()));
  }
  Json model = Json::object();
  model.set("type", "BPE")
      .set("ignore_merges", true)
      .set("vocab", vocab)
      .set("merges", Json::array());
  Json file = Json::object();
  file.set("model", model);
  file.set("pre_tokenizer", parse_json_or_throw(pre_tokenizer, "pre_tokenizer", Reason::kInternal));
  file.set("decoder", Json::object().set("type", "ByteLevel"));
  Json added = Json::array();
  for (int64_t i = 0; i < more; ++i) {
    const int64_t id = static_cast<int64_t>(vocab.as_object().size()) + i;
    Json token = Json::object();
    token.set("id", id).set("content", cat("<|", i, "|>")).set("special", true);
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) {
      token.set(flag, false);
    }
    added.push(token);
  }
  file.set("added_tokens", added);
  return Tokenizer::parse(file.dump(), "tokenizer.json");
}

// The text of each token.
Strings cuts(const Tokenizer& tokenizer, const std::string& text) {
  Strings out;
  for (const int32_t id : tokenizer.encode(text).ids) {
    out.push_back(tokenizer.decode(std::vector<int32_t>{id}, SkipSpecial::kNo));
  }
  return out;
}

std::string split_then_bytes(const std::string& pattern) {
  return cat(R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": )",
             json_quote(pattern), R"(}, "behavior": "Isolated", "invert": false},
             {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
              "use_regex": false}]})");
}

constexpr const char* kGpt2 =
    R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})";

TEST(TokenizerPains, pain_P089_code_is_cut_by_the_pattern_of_the_file) {
  const std::string code = "if (x == 1234567) {\n\tfoo();\n}\n";
  const Strings llama = {"if", " (", "x",    " ==",   " ",     "123", "456",
                         "7",  ")",  " {\n", "\tfoo", "();\n", "}\n"};
  EXPECT_EQ(cuts(cutter(split_then_bytes(kLlama3Pattern), llama), code), llama);
  const Strings gpt2 = {"if", " (", "x",   " ==", " 1234567", ")", " {",
                        "\n", "\t", "foo", "();", "\n",       "}", "\n"};
  EXPECT_EQ(cuts(cutter(kGpt2, gpt2), code), gpt2);
}

TEST(TokenizerPains, pain_P090_the_last_blank_of_a_run_goes_with_the_word) {
  for (const std::string& pre : {std::string(kGpt2), split_then_bytes(kLlama3Pattern)}) {
    const Strings two = {"a", " ", " b"};
    EXPECT_EQ(cuts(cutter(pre, two), "a  b"), two);
    const Strings indented = {"   ", " return", " x"};
    EXPECT_EQ(cuts(cutter(pre, indented), "    return x"), indented);
    const Strings trailing = {"x", "   "};
    EXPECT_EQ(cuts(cutter(pre, trailing), "x   "), trailing);
  }
}

TEST(TokenizerPains, pain_P091_the_sequence_of_the_file_is_interpreted) {
  const std::string sequence = R"({"type": "Sequence", "pretokenizers": [
    {"type": "Punctuation", "behavior": "Contiguous"},
    {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    {"type": "Digits", "individual_digits": false},
    {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated",
     "invert": false}]})";
  const Strings pieces = {"It", " costs", ":", " ", "123", "45", " ", "(", "\xC3\xA9", "7", ")!!"};
  EXPECT_EQ(cuts(cutter(sequence, pieces),
                 "It costs: 12345 (\xC3\xA9"
                 "7)!!"),
            pieces);
  try {
    cutter(R"({"type": "Sequence", "pretokenizers": [{"type": "Clairvoyant"}]})", {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), Reason::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("\"Clairvoyant\""), std::string::npos) << error.what();
  }
}

// Letters of every script, marks and the rest go by Unicode, not by ASCII.
TEST(TokenizerPains, pain_P093_the_pattern_knows_all_scripts) {
  const std::string pre = split_then_bytes(kLlama3Pattern);
  // Cyrillic and Chinese letters; an Arabic-Indic number of four digits; a mark is no letter.
  const Strings pieces = {"\xD0\xBC\xD0\xB8\xD1\x80",
                          "\xE3\x80\x82\xE4\xBD\xA0\xE5\xA5\xBD",
                          " ",
                          "\xD9\xA1\xD9\xA2\xD9\xA3",
                          "\xD9\xA4",
                          "e",
                          "\xCC\x81",
                          "\xC2\xA0x"};
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  EXPECT_EQ(cuts(cutter(pre, pieces), text), pieces);
  // The apostrophe rule ignores case, also for the long s (U+017F).
  const Strings apostrophes = {"WE", "'RE", "it", "'\xC5\xBF"};
  EXPECT_EQ(cuts(cutter(pre, apostrophes), "WE'REit'\xC5\xBF"), apostrophes);
}

TEST(TokenizerPains, pain_P094_backslash_n_is_not_a_line_end) {
  const Tokenizer tokenizer = cutter(kGpt2, {"nb"});
  EXPECT_EQ(cuts(tokenizer, "a\\nb"), (Strings{"a", "\\", "nb"}));
  EXPECT_EQ(cuts(tokenizer, "a\nb"), (Strings{"a", "\n", "b"}));
  EXPECT_NE(tokenizer.encode("a\\nb").ids, tokenizer.encode("a\nb").ids);
}

// The embedding may have more rows than the tokenizer has ids; the tokenizer says its own size, and
// rows beyond it decode to nothing.
TEST(TokenizerPains, pain_P188_vocabulary_may_be_shorter_than_the_embedding) {
  const Tokenizer tokenizer = cutter(kGpt2, {"ab"}, 3);
  EXPECT_EQ(tokenizer.vocabulary_size(), 260u);
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{256, 300, 259, 319}, SkipSpecial::kYes), "ab");
  EXPECT_THROW(tokenizer.id_to_token(300), Error);
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.push(256) + stream.push(319) + stream.flush(), "ab");
}

// Several end tokens are ids of their own: a chat template's turn end and the end of text.
TEST(TokenizerPains, pain_P051_turn_end_and_text_end_are_different_special_tokens) {
  const Tokenizer tokenizer = cutter(kGpt2, {"Hi"}, 2);
  const std::vector<int32_t> ids = tokenizer.encode("Hi<|0|>Hi<|1|>").ids;
  EXPECT_EQ(ids, (std::vector<int32_t>{256, 257, 256, 258}));
  EXPECT_TRUE(tokenizer.is_special(257) && tokenizer.is_special(258));
  EXPECT_EQ(tokenizer.decode(ids, SkipSpecial::kYes), "HiHi");
}

// The tokenizer adds what its post-processor says, never an end token of its own accord.
TEST(TokenizerPains, pain_P052_no_end_token_unless_the_post_processor_adds_it) {
  const Tokenizer tokenizer = cutter(kGpt2, {"Hi"}, 1);
  EXPECT_EQ(tokenizer.encode("Hi").ids, (std::vector<int32_t>{256}));
  EXPECT_EQ(tokenizer.encode("Hi", {.add_special_tokens = false}).ids, (std::vector<int32_t>{256}));
}

// An end token that the text already has is one token, so that callers can see it and add none.
TEST(TokenizerPains, pain_P053_an_end_token_in_the_text_is_seen_as_one_id) {
  const Tokenizer tokenizer = cutter(kGpt2, {"Hi"}, 1);
  const std::vector<int32_t> ids = tokenizer.encode("Hi<|0|>").ids;
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_EQ(ids.back(), tokenizer.token_to_id("<|0|>"));
}

}  // namespace
}  // namespace galley::text
