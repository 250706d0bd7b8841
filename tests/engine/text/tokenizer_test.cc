// The tokenizer on small files written here: rules, errors, hostile input, known pains.
#include "engine/text/tokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/json.h"
#include "engine/core/strings.h"
#include "engine/text/tok_parts.h"
#include "engine/text/tok_text.h"
#include "tests/support/reference.h"

namespace galley::text {
namespace {

Json parse(std::string_view text) { return parse_json_or_throw(text, "test", Reason::kInternal); }

// A byte-level vocabulary: the 256 bytes, then what the merges make.
Json byte_level_file(const std::vector<std::pair<std::string, std::string>>& merges) {
  Json vocab = Json::object();
  int64_t next = 0;
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    append_utf8(&token, internal::byte_to_alphabet(static_cast<unsigned char>(byte)));
    vocab.set(token, next++);
  }
  Json list = Json::array();
  for (const auto& [left, right] : merges) {
    list.push(Json(Json::Array{left, right}));
    vocab.set(left + right, next++);
  }
  Json file = parse(R"({"version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
    "post_processor": null,
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null,
      "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false}})");
  file.find("model")->set("vocab", vocab).set("merges", list);
  return file;
}

// A model over the characters a to e, with an unknown token.
Json letters_file() {
  return parse(R"({"added_tokens": [], "normalizer": null, "pre_tokenizer": null,
    "post_processor": null, "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "unk_token": "?", "merges": ["a b", "ab c"],
      "vocab": {"?": 0, "a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "ab": 6, "abc": 7}}})");
}

Json added(int64_t id, const std::string& content, bool special) {
  Json token = Json::object();
  token.set("id", id).set("content", content).set("special", special);
  for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) token.set(flag, false);
  return token;
}

Tokenizer make(const Json& file) { return Tokenizer::parse(file.dump(), "tokenizer.json"); }

std::vector<std::string> spellings(const Tokenizer& tokenizer, std::string_view text,
                                   const EncodeOptions& options = {}) {
  std::vector<std::string> out;
  for (const int32_t id : tokenizer.encode(text, options).ids) {
    out.push_back(tokenizer.id_to_token(id));
  }
  return out;
}

using Strings = std::vector<std::string>;

// The Error that making a tokenizer of `file` throws; kOk when it throws none.
std::pair<Reason, std::string> fault_of(const std::string& file) {
  try {
    Tokenizer::parse(file, "FILE");
  } catch (const Error& error) {
    return {error.reason(), error.what()};
  }
  return {Reason::kOk, ""};
}

void expect_fault(const Json& file, Reason reason, const std::string& part) {
  const auto [found, message] = fault_of(file.dump());
  EXPECT_EQ(reason_traits(found).name, reason_traits(reason).name) << part << ": " << message;
  EXPECT_NE(message.find(part), std::string::npos) << message;
  EXPECT_EQ(message.find("FILE"), 0u) << message;
}

TEST(Tokenizer, merges_in_the_order_of_their_ranks) {
  const Tokenizer tokenizer = make(byte_level_file({{"b", "c"}, {"a", "b"}, {"ab", "c"}}));
  EXPECT_EQ(spellings(tokenizer, "abc"), (Strings{"a", "bc"}));
  EXPECT_EQ(spellings(tokenizer, "abab"), (Strings{"ab", "ab"}));
}

TEST(Tokenizer, long_words_merge_like_short_ones) {
  const Tokenizer tokenizer = make(byte_level_file({{"a", "a"}, {"aa", "aa"}, {"b", "aaaa"}}));
  // 3 + 4 * 40 letters: leftmost pairs first, for words on both sides of the short-word limit.
  for (const size_t length : {size_t{11}, size_t{163}}) {
    const Strings tokens = spellings(tokenizer, std::string(length, 'a'));
    ASSERT_EQ(tokens.size(), length / 4 + 2) << length;
    for (size_t i = 0; i < length / 4; ++i) EXPECT_EQ(tokens[i], "aaaa");
    EXPECT_EQ(tokens[length / 4], "aa");
    EXPECT_EQ(tokens.back(), "a");
  }
}

TEST(Tokenizer, the_word_cache_changes_no_result) {
  const Tokenizer tokenizer =
      make(byte_level_file({{"t", "h"}, {"th", "e"}, {"\xC4\xA0", "the"}, {"r", "o"}}));
  std::string text;
  std::mt19937 random(3);
  for (int i = 0; i < 60000; ++i) {
    text += (i % 3 != 0 ? " the" : " " + std::to_string(random() % 50000) + "rower");
  }
  const Encoding with = tokenizer.encode(text);
  const Encoding without = tokenizer.parts().encode(text, {}, internal::WordCaching::kNo);
  EXPECT_EQ(with.ids, without.ids);
  EXPECT_EQ(with.begin, without.begin);
  EXPECT_EQ(with.end, without.end);
}

TEST(Tokenizer, offsets_are_bytes_of_the_original_text) {
  const Tokenizer tokenizer = make(byte_level_file({}));
  const Encoding encoding = tokenizer.encode("a\xC3\xA9");  // the two bytes of one character
  EXPECT_EQ(encoding.begin, (std::vector<size_t>{0, 1, 1}));
  EXPECT_EQ(encoding.end, (std::vector<size_t>{1, 3, 3}));
}

TEST(Tokenizer, post_processor_tokens_have_empty_offsets_and_can_be_left_out) {
  Json file = letters_file();
  file.set("post_processor", parse(R"({"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "d", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
               {"SpecialToken": {"id": "e", "type_id": 0}}], "pair": [],
    "special_tokens": {"d": {"id": "d", "ids": [4], "tokens": ["d"]},
                       "e": {"id": "e", "ids": [5, 3], "tokens": ["e", "c"]}}})"));
  const Tokenizer tokenizer = make(file);
  const Encoding encoding = tokenizer.encode("abcb");
  EXPECT_EQ(encoding.ids, (std::vector<int32_t>{4, 7, 2, 5, 3}));
  EXPECT_EQ(encoding.begin, (std::vector<size_t>{0, 0, 3, 0, 0}));
  EXPECT_EQ(encoding.end, (std::vector<size_t>{0, 3, 4, 0, 0}));
  EXPECT_EQ(tokenizer.encode("abcb", {.add_special_tokens = false}).ids,
            (std::vector<int32_t>{7, 2}));
}

// The template's special tokens stay special, the same strings in a message become text.
TEST(Tokenizer, text_breaks_turn_single_occurrences_into_text) {
  Json file = byte_level_file({{":", "<"}});
  file.set("added_tokens",
           Json(Json::Array{added(257, "<|a|>", true), added(258, "<|a|><|b|>", true),
                            added(259, "<tool>", false)}));
  const Tokenizer tokenizer = make(file);
  const std::string text = "<|a|>x:<|a|><tool><|a|>";
  const std::vector<size_t> breaks = {8, 14};  // inside the second special token, and <tool>
  const EncodeOptions options{.text_breaks = breaks};
  EXPECT_EQ(spellings(tokenizer, text, options),
            (Strings{"<|a|>", "x", ":", "<", "|", "a", "|", ">", "<tool>", "<|a|>"}))
      << "text is cut at both ends of the string, and tokens that are not special stay whole";
  // A break at either end of an occurrence does not touch it.
  const std::vector<size_t> ends = {0, 5, 7, 12, 18, 23};
  const EncodeOptions at_ends{.text_breaks = ends};
  EXPECT_EQ(spellings(tokenizer, text, at_ends), spellings(tokenizer, text));
  // Where the longest token is broken, a shorter one that is whole is taken.
  const std::vector<size_t> in_second = {7};
  const EncodeOptions shorter{.text_breaks = in_second};
  EXPECT_EQ(spellings(tokenizer, "<|a|><|b|>", shorter),
            (Strings{"<|a|>", "<", "|", "b", "|", ">"}));
}

TEST(Tokenizer, special_tokens_as_text_leave_other_added_tokens_whole) {
  Json file = byte_level_file({});
  file.set("added_tokens", Json(Json::Array{added(256, "<s>", true), added(257, "<t>", false)}));
  const Tokenizer tokenizer = make(file);
  const EncodeOptions options{.special_as_text = true};
  EXPECT_EQ(spellings(tokenizer, "<s><t>", options), (Strings{"<", "s", ">", "<t>"}));
  EXPECT_EQ(tokenizer.special_token_strings(), Strings{"<s>"});
  EXPECT_TRUE(tokenizer.is_special(256));
  EXPECT_FALSE(tokenizer.is_special(257));
  EXPECT_FALSE(tokenizer.is_special(1000));
}

TEST(Tokenizer, decode_leaves_special_tokens_out_on_request) {
  Json file = byte_level_file({});
  file.set("added_tokens", Json(Json::Array{added(256, "<s>", true)}));
  const Tokenizer tokenizer = make(file);
  const std::vector<int32_t> ids = {256, *tokenizer.token_to_id("a"), 256};
  EXPECT_EQ(tokenizer.decode(ids, SkipSpecial::kNo), "<s>a<s>");
  EXPECT_EQ(tokenizer.decode(ids, SkipSpecial::kYes), "a");
}

TEST(Tokenizer, ill_formed_bytes_decode_to_one_mark_for_each_maximal_part) {
  const Tokenizer tokenizer = make(byte_level_file({}));
  const auto decode = [&](const std::string& bytes) {
    std::vector<int32_t> ids;
    for (const char byte : bytes) {
      std::string token;
      append_utf8(&token, internal::byte_to_alphabet(static_cast<unsigned char>(byte)));
      ids.push_back(*tokenizer.token_to_id(token));
    }
    StreamDecoder stream(tokenizer);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.push(id);
    streamed += stream.flush();
    const std::string text = tokenizer.decode(ids, SkipSpecial::kNo);
    EXPECT_EQ(streamed, text);
    return text;
  };
  const std::string mark = "\xEF\xBF\xBD";
  EXPECT_EQ(decode("\xE4\xBD\xA0"), "\xE4\xBD\xA0");
  EXPECT_EQ(decode("\xE4\xBD"), mark);
  EXPECT_EQ(decode("\xE4\xBDz"), mark + "z");
  EXPECT_EQ(decode("\xC0\xAF"), mark + mark);
  EXPECT_EQ(decode("\xED\xA0\x80"), mark + mark + mark);
  EXPECT_EQ(decode("\xF4\x90\x80\x80"), mark + mark + mark + mark);
  EXPECT_EQ(decode("\xF0\x9F\x98\xE4\xBD\xA0"), mark + "\xE4\xBD\xA0");
}

TEST(Tokenizer, the_stream_holds_back_only_what_may_become_a_character) {
  const Tokenizer tokenizer = make(byte_level_file({{"a", "\xC3\xA4"}}));  // "a" and byte E4
  StreamDecoder stream(tokenizer);
  const auto id = [&](const char* token) { return *tokenizer.token_to_id(token); };
  EXPECT_EQ(stream.push(id("a\xC3\xA4")), "a");
  EXPECT_EQ(stream.push(id("b")),
            "\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(stream.push(id("\xC3\xA4")), "");
  EXPECT_EQ(stream.flush(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.flush(), "");
}

TEST(Tokenizer, streams_of_any_length_equal_decode) {
  Json file = letters_file();
  file.find("model")
      ->find("vocab")
      ->set("<0xE4>", 8)
      .set("<0xBD>", 9)
      .set("<0xA0>", 10)
      .set("_", 11);
  file.set("decoder", parse(R"({"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "_"}, "content": " "},
    {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})"));
  const Tokenizer tokenizer = make(file);
  std::mt19937 random(5);
  std::vector<int32_t> ids = {11};
  StreamDecoder stream(tokenizer);
  std::string all = stream.push(11);
  for (int i = 0; i < 3000; ++i) {
    ids.push_back(static_cast<int32_t>(random() % 12));
    all += stream.push(ids.back());
    ASSERT_TRUE(is_valid_utf8(all));
  }
  EXPECT_EQ(all + stream.flush(), tokenizer.decode(ids, SkipSpecial::kNo));
}

TEST(Tokenizer, several_threads_use_one_tokenizer) {
  const Tokenizer tokenizer = make(byte_level_file({{"a", "b"}, {"ab", "a"}}));
  const std::string text = "abab aba ababab ba";
  const std::vector<int32_t> expected = tokenizer.encode(text).ids;
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      const Tokenizer copy = tokenizer;
      for (int i = 0; i < 200; ++i) wrong[t] += copy.encode(text).ids != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

TEST(Tokenizer, text_must_be_utf8) {
  const Tokenizer tokenizer = make(byte_level_file({}));
  try {
    tokenizer.encode("ab\xFF");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), Reason::kBadData);
    EXPECT_NE(std::string(error.what()).find("byte 2"), std::string::npos) << error.what();
  }
}

TEST(Tokenizer, ids_outside_of_the_vocabulary_are_an_error_or_nothing) {
  const Tokenizer tokenizer = make(letters_file());
  EXPECT_EQ(tokenizer.vocabulary_size(), 8u);
  EXPECT_THROW(tokenizer.id_to_token(8), Error);
  EXPECT_THROW(tokenizer.id_to_token(-1), Error);
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{1, 8, -1, 2}, SkipSpecial::kNo), "ab");
  EXPECT_EQ(tokenizer.token_to_id("zzz"), std::nullopt);
}

TEST(Tokenizer, loads_a_folder_or_a_file_and_names_a_missing_one) {
  const std::string folder = testing::scratch_directory("tokenizer_load");
  write_file_atomically(path_join(folder, "tokenizer.json"), letters_file().dump());
  EXPECT_EQ(Tokenizer::load(folder).hash(),
            Tokenizer::load(path_join(folder, "tokenizer.json")).hash());
  EXPECT_EQ(Tokenizer::load(folder).hash().size(), 32u);
  for (const std::string& path : {folder + "/none", folder + "/none/tokenizer.json"}) {
    try {
      Tokenizer::load(path);
      FAIL() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kMissingPath) << error.what();
    }
  }
  make_directories(folder + "/empty");
  EXPECT_THROW(Tokenizer::load(folder + "/empty"), Error);
}

TEST(TokenizerFaults, broken_files_say_where) {
  const Reason bad = Reason::kBadTokenizer;
  EXPECT_EQ(fault_of("{").first, bad);
  EXPECT_EQ(fault_of("[]").first, bad);
  EXPECT_EQ(fault_of("").first, bad);
  EXPECT_EQ(fault_of("{\"model\": {}, \"model\": {}}").first, bad);
  EXPECT_EQ(fault_of("\xFF\xFE").first, bad);

  const auto with = [](const std::string& key, Json value) {
    return letters_file().set(key, std::move(value));
  };
  const auto with_model = [](const std::string& key, Json value) {
    Json file = letters_file();
    file.find("model")->set(key, std::move(value));
    return file;
  };
  expect_fault(with("model", Json()), bad, "model");
  expect_fault(with("model", Json("BPE")), bad, "model: must be an object");
  expect_fault(with("added_tokens", Json("x")), bad, "added_tokens: must be a list");
  expect_fault(with("normalizer", Json::object()), bad, "the key \"type\" is missing");
  expect_fault(with("normalizer", Json(3)), bad, "normalizer: must be an object");
  expect_fault(with_model("vocab", Json()), bad, "model.vocab");
  expect_fault(with_model("vocab", Json::array()), bad, "model.vocab");
  expect_fault(with_model("vocab", parse(R"({"a": "x"})")), bad, "the id of \"a\"");
  expect_fault(with_model("vocab", parse(R"({"a": -1})")), bad, "the id of \"a\" is -1");
  expect_fault(with_model("vocab", parse(R"({"a": 1.5})")), bad, "must be an integer");
  expect_fault(with_model("vocab", parse(R"({"a": 4000000000000})")), bad, "the id of \"a\"");
  expect_fault(with_model("vocab", parse(R"({"a": 1, "b": 1})")), bad, "id 1 is given to");
  expect_fault(with_model("merges", Json()), bad, "model.merges");
  expect_fault(with_model("merges", Json("a b")), bad, "model.merges: must be a list");
  expect_fault(with_model("merges", parse(R"(["a x"])")), bad, "entry 0 needs the token \"x\"");
  expect_fault(with_model("merges", parse(R"(["a b", "b c"])")), bad,
               "entry 1 needs the token \"bc\"");
  expect_fault(with_model("merges", parse(R"(["ab"])")), bad, "entry 0");
  expect_fault(with_model("merges", parse(R"(["a b c"])")), bad, "entry 0");
  expect_fault(with_model("merges", parse(R"([["a"]])")), bad, "entry 0");
  expect_fault(with_model("merges", parse(R"([["a", 3]])")), bad, "entry 0");
  expect_fault(with_model("merges", parse(R"([7])")), bad, "entry 0");
  expect_fault(with_model("unk_token", Json("none")), bad, "model.unk_token");
  expect_fault(with_model("fuse_unk", Json("yes")), bad, "model.fuse_unk: must be true or false");
  expect_fault(with("pre_tokenizer", parse(R"({"type": "ByteLevel"})")), bad,
               "pre_tokenizer: the key \"add_prefix_space\" is missing");
  expect_fault(with("pre_tokenizer", parse(R"({"type": "Sequence", "pretokenizers": [
                 {"type": "Digits", "individual_digits": 1}]})")),
               bad, "pre_tokenizer.pretokenizers[0].individual_digits");
  expect_fault(with("pre_tokenizer", parse(R"({"type": "Split", "pattern": {"Regex": "(a"},
                 "behavior": "Isolated", "invert": false})")),
               bad, "pre_tokenizer.pattern.Regex");
  expect_fault(with("pre_tokenizer", parse(R"({"type": "Split", "pattern": "a",
                 "behavior": "Isolated", "invert": false})")),
               bad, "pre_tokenizer.pattern");
  expect_fault(with("pre_tokenizer", parse(R"({"type": "Metaspace", "replacement": "ab"})")), bad,
               "must be one character");
  expect_fault(with("post_processor", parse(R"({"type": "TemplateProcessing",
                 "single": [{"SpecialToken": {"id": "x", "type_id": 0}}], "pair": [],
                 "special_tokens": {}})")),
               bad, "the key \"x\" is missing");
}

TEST(TokenizerFaults, added_tokens_must_have_the_ids_that_every_reader_gives_them) {
  const auto with = [](Json::Array tokens) {
    return letters_file().set("added_tokens", Json(std::move(tokens)));
  };
  const Reason bad = Reason::kBadTokenizer;
  expect_fault(with({added(9, "<s>", true)}), bad, "has id 9, but the next free id is 8");
  expect_fault(with({added(9, "<s>", true), added(8, "<t>", true)}), bad, "added_tokens[0]");
  expect_fault(with({added(8, "<s>", true), added(8, "<t>", true)}), bad, "added_tokens[1]");
  expect_fault(with({added(8, "<s>", true), added(9, "<s>", true)}), bad, "listed twice");
  expect_fault(with({added(8, "abc", true)}), bad, "the vocabulary gives it 7");
  expect_fault(with({added(8, "", true)}), bad, "must not be empty");
  expect_fault(with({Json(5)}), bad, "added_tokens[0]");
  expect_fault(with({parse(R"({"id": 8, "content": "x"})")}), bad, "is missing");
  const Tokenizer tokenizer = make(with({added(7, "abc", true), added(8, "<s>", true)}));
  EXPECT_EQ(tokenizer.vocabulary_size(), 9u);
}

TEST(TokenizerFaults, gaps_between_ids_are_no_fault) {
  Json file = letters_file();
  file.find("model")->find("vocab")->set("far", 20);
  const Tokenizer tokenizer = make(file);
  EXPECT_EQ(tokenizer.vocabulary_size(), 21u);
  EXPECT_EQ(tokenizer.id_to_token(20), "far");
  EXPECT_THROW(tokenizer.id_to_token(12), Error);
}

TEST(TokenizerFaults, unknown_parts_are_refused_by_name) {
  const Reason no = Reason::kUnsupported;
  const auto with = [](const std::string& key, const char* value) {
    return letters_file().set(key, parse(value));
  };
  expect_fault(with("normalizer", R"({"type": "Precompiled"})"), no, "\"Precompiled\"");
  expect_fault(with("normalizer", R"({"type": "Sequence", "normalizers": [{"type": "Foo"}]})"), no,
               "\"Foo\"");
  expect_fault(with("pre_tokenizer", R"({"type": "UnicodeScripts"})"), no, "\"UnicodeScripts\"");
  expect_fault(with("post_processor", R"({"type": "Foo"})"), no, "\"Foo\"");
  expect_fault(with("decoder", R"({"type": "CTC"})"), no, "\"CTC\"");
  expect_fault(with("model", R"({"type": "Other", "vocab": {}})"), no,
               "model type \"Other\" is not supported by this version; supported: ");
  expect_fault(with("extra", R"(1)"), no, "\"extra\"");
  expect_fault(with("version", R"("2.0")"), no, "\"2.0\"");
  expect_fault(with("pre_tokenizer", R"({"type": "Metaspace", "replacement": "_",
                 "prepend_scheme": "sometimes"})"),
               no, "\"sometimes\"");
  expect_fault(with("pre_tokenizer", R"({"type": "Split", "pattern": {"String": "a"},
                 "behavior": "Sideways", "invert": false})"),
               no, "\"Sideways\"");
  Json dropout = letters_file();
  dropout.find("model")->set("dropout", 0.1);
  expect_fault(dropout, no, "dropout");
}

TEST(TokenizerFaults, patterns_that_mean_different_things_to_different_engines_are_refused) {
  for (const char* pattern : {"[a&&b]", "[[:alpha:]]", "[a[bc]]", "\\\\X", "(?s)a", "(?<n>a)",
                              "\\\\p{Nonsense}", "[\\\\W]", "a{2}+", "(*ACCEPT)"}) {
    Json file = letters_file();
    file.set("pre_tokenizer",
             parse(cat(R"({"type": "Split", "behavior": "Isolated", "invert": false,
                        "pattern": {"Regex": ")",
                       pattern, R"("}})")));
    EXPECT_EQ(fault_of(file.dump()).first, Reason::kUnsupported)
        << pattern << ": " << fault_of(file.dump()).second;
  }
}

// Cuts one byte out, or changes one, of a good file: it loads or is refused, nothing else.
TEST(TokenizerHostile, damaged_files_are_refused_or_load) {
  Json file = letters_file();
  file.set("added_tokens", Json(Json::Array{added(8, "<s>", true)}));
  const std::string good = file.dump();
  const std::set<Reason> fine = {Reason::kOk, Reason::kBadTokenizer, Reason::kUnsupported};
  std::mt19937 random(11);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string cut = good;
    cut.erase(i, 1);
    EXPECT_TRUE(fine.contains(fault_of(cut).first)) << cut;
    std::string changed = good;
    changed[i] = static_cast<char>(random());
    EXPECT_TRUE(fine.contains(fault_of(changed).first)) << changed;
    EXPECT_TRUE(fine.contains(fault_of(good.substr(0, i)).first));
  }
}

// Valid UTF-8 of all kinds comes back; a byte-level tokenizer without normalizer loses nothing.
TEST(TokenizerHostile, random_text_round_trips) {
  Json file = byte_level_file({{"a", "b"}, {"\xC4\xA0", "a"}, {"\xC3\xA3", "\xC2\xA9"}});
  file.set("added_tokens", Json(Json::Array{added(259, "<s>", true), added(260, "ab ", false)}));
  const Tokenizer tokenizer = make(file);
  std::mt19937 random(17);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (size_t length = random() % 200; length > 0; --length) {
      switch (random() % 5) {
        case 0:
          text += "<s>";
          break;
        case 1:
          text += "ab ";
          break;
        case 2:
          text.push_back(static_cast<char>(random() % 128));
          break;
        default: {
          char32_t c = random() % 0x110000;
          if (c >= 0xD800 && c < 0xE000) c = '\n';
          append_utf8(&text, c);
        }
      }
    }
    const Encoding encoding = tokenizer.encode(text);
    EXPECT_EQ(tokenizer.decode(encoding.ids, SkipSpecial::kNo), text);
    size_t covered = 0;  // offsets go on without holes
    for (size_t i = 0; i < encoding.ids.size(); ++i) {
      ASSERT_LE(encoding.begin[i], covered);
      ASSERT_LE(encoding.end[i], text.size());
      covered = std::max(covered, encoding.end[i]);
    }
    EXPECT_EQ(covered, text.size());
  }
}

TEST(TokenizerHostile, random_bytes_are_refused_or_encoded) {
  const Tokenizer tokenizer = make(byte_level_file({}));
  std::mt19937 random(19);
  for (int round = 0; round < 500; ++round) {
    std::string bytes;
    for (size_t length = random() % 40; length > 0; --length) {
      bytes.push_back(static_cast<char>(random()));
    }
    if (is_valid_utf8(bytes)) {
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(bytes).ids, SkipSpecial::kNo), bytes);
    } else {
      EXPECT_THROW(tokenizer.encode(bytes), Error);
    }
  }
}

TEST(TokenizerHostile, long_runs_are_quick_enough_and_exact) {
  const Tokenizer tokenizer = make(byte_level_file({{"\xC4\xA0", "\xC4\xA0"}, {"a", "a"}}));
  for (const char* unit : {" ", "a", "\n", "\xE4\xBD\xA0", "'"}) {
    std::string text;
    for (int i = 0; i < 100000; ++i) text += unit;
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text).ids, SkipSpecial::kNo), text);
  }
}

// A match too deep for the stack of compiled patterns goes on in the interpreter.
TEST(TokenizerHostile, deep_matches_fall_back_to_the_interpreter) {
  Json file = byte_level_file({});
  file.set("pre_tokenizer", parse(R"({"type": "Split", "behavior": "Removed", "invert": true,
    "pattern": {"Regex": "(?:a|b)+c"}})"));
  const Tokenizer tokenizer = make(file);
  std::string text = "xy";
  for (int i = 0; i < 50000; ++i) text += "ab";
  text += "cz";
  const Encoding encoding = tokenizer.encode(text);
  ASSERT_EQ(encoding.ids.size(), 100001u);
  EXPECT_EQ(encoding.begin.front(), 2u);
  EXPECT_EQ(encoding.end.back(), text.size() - 1);
}

}  // namespace
}  // namespace galley::text
