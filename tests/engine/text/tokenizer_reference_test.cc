// Token ids, offsets, decoded text and streamed pieces against the values of Hugging Face's
// tokenizers library, case by case.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/json.h"
#include "engine/core/strings.h"
#include "engine/text/tokenizer.h"
#include "tests/support/reference.h"

namespace galley::text {
namespace {

using testing::CaseCount;

// Tokenizers and edge files that this version refuses by name; nothing at present.
const std::set<std::string> kRefused = {};

std::string tokenizer_path(const std::string& name) {
  if (name == "smollm2") return testing::smollm2_path();
  const std::string folder = testing::reference_path("tokenizers");
  return folder.empty() ? "" : path_join(folder, name);
}

std::vector<int32_t> int_list(const Json& list) {
  std::vector<int32_t> out;
  for (const Json& item : list.as_array()) out.push_back(static_cast<int32_t>(item.as_int()));
  return out;
}

// Character positions, as the library's Python side reports bytes.
std::vector<std::pair<int64_t, int64_t>> in_characters(std::string_view text,
                                                       const Encoding& encoding) {
  std::vector<int64_t> index(text.size() + 1);
  int64_t count = 0;
  for (size_t offset = 0; offset < text.size(); ++count) {
    const size_t begin = offset;
    next_utf8(text, &offset);
    std::fill(index.begin() + static_cast<std::ptrdiff_t>(begin),
              index.begin() + static_cast<std::ptrdiff_t>(offset), count);
  }
  index[text.size()] = count;
  std::vector<std::pair<int64_t, int64_t>> out;
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    out.emplace_back(index[encoding.begin[i]], index[encoding.end[i]]);
  }
  return out;
}

std::vector<std::pair<int64_t, int64_t>> pair_list(const Json& list) {
  std::vector<std::pair<int64_t, int64_t>> out;
  for (const Json& item : list.as_array()) {
    out.emplace_back(item.as_array()[0].as_int(), item.as_array()[1].as_int());
  }
  return out;
}

// A token's spelling without the blanks that lstrip and rstrip took along.
std::string bare(const std::string& token) {
  for (const char* name : {"<mask>", "<L>", "<R>"}) {
    if (token.find(name) != std::string::npos) return name;
  }
  return token;
}

// Compares what the row has; true when all is equal.
void check_row(const Tokenizer& tokenizer, const std::string& text, const Json& row) {
  const Encoding full = tokenizer.encode(text);
  const Encoding plain = tokenizer.encode(text, {.add_special_tokens = false});
  EXPECT_EQ(full.ids, int_list(row.at("ids")));
  EXPECT_EQ(plain.ids, int_list(row.at("ids_plain")));
  if (const Json* offsets = row.find("offsets_plain")) {
    EXPECT_EQ(in_characters(text, plain), pair_list(*offsets));
  }
  if (const Json* offsets = row.find("offsets")) {
    EXPECT_EQ(in_characters(text, full), pair_list(*offsets));
  }
  EXPECT_EQ(tokenizer.decode(full.ids, SkipSpecial::kNo), row.at("decode").as_string());
  EXPECT_EQ(tokenizer.decode(full.ids, SkipSpecial::kYes), row.at("decode_skip").as_string());
  EXPECT_EQ(tokenizer.decode(plain.ids, SkipSpecial::kNo), row.at("decode_plain").as_string());
  if (const Json* tokens = row.find("tokens")) {
    ASSERT_EQ(full.ids.size(), tokens->as_array().size());
    for (size_t i = 0; i < full.ids.size(); ++i) {
      const std::string expected = bare(tokens->as_array()[i].as_string());
      const std::string& spelling = tokenizer.id_to_token(full.ids[i]);
      // Unknown words keep their own spelling in some models' token strings.
      if (spelling != "[UNK]" && spelling != "<unk>") {
        EXPECT_EQ(spelling, expected);
      }
    }
  }
  if (const Json* as_text = row.find("ids_special_as_text")) {
    const EncodeOptions options{.add_special_tokens = false, .special_as_text = true};
    EXPECT_EQ(tokenizer.encode(text, options).ids, int_list(*as_text));
  }
}

// Loads, or notes the refusal and returns nothing.
std::optional<Tokenizer> load_or_refuse(const std::string& path, const std::string& name,
                                        CaseCount* count) {
  try {
    return Tokenizer::load(path);
  } catch (const Error& error) {
    EXPECT_TRUE(kRefused.contains(name)) << error.what();
    EXPECT_EQ(error.reason(), Reason::kUnsupported) << error.what();
    count->refuse(name);
    return std::nullopt;
  }
}

TEST(TokenizerReference, reference_ids_offsets_and_text_of_every_tokenizer) {
  GALLEY_NEED_REFERENCE(folder, "tokens");
  GALLEY_NEED_SMOLLM2(smollm2);
  std::map<std::string, std::string> texts;
  for (const Json& row : testing::read_json_lines(path_join(folder, "texts.jsonl"))) {
    texts[row.get_string("id")] = row.get_string("text");
  }
  const std::set<std::string> others = {"texts.jsonl", "streaming.jsonl", "vocab_edges.jsonl"};
  for (const std::string& file : testing::list_directory(folder)) {
    if (!file.ends_with(".jsonl") || others.contains(file)) continue;
    const std::string name = file.substr(0, file.size() - 6);
    CaseCount count("tokens/" + file);
    const auto tokenizer = load_or_refuse(tokenizer_path(name), name, &count);
    if (!tokenizer) continue;
    for (const Json& row : testing::read_json_lines(path_join(folder, file))) {
      const std::string id = row.get_string("id");
      ASSERT_TRUE(texts.contains(id)) << id;
      const ::testing::ScopedTrace trace(__FILE__, __LINE__, name + " " + id);
      check_row(*tokenizer, texts[id], row);
      count.pass();
    }
  }
}

// Every tokenizer of the folder loads and brings plain texts back, known to the files above or not.
TEST(TokenizerReference, reference_every_tokenizer_loads_and_round_trips) {
  GALLEY_NEED_REFERENCE(folder, "tokenizers");
  GALLEY_NEED_REFERENCE(tokens, "tokens");
  CaseCount count("tokenizers");
  for (const std::string& name : testing::list_directory(folder)) {
    if (!is_directory(path_join(folder, name))) continue;
    const auto tokenizer = load_or_refuse(path_join(folder, name), name, &count);
    if (!tokenizer) continue;
    for (const Json& row : testing::read_json_lines(path_join(tokens, "texts.jsonl"))) {
      if (row.get_string("kind") != "ascii") continue;
      const std::string text = row.get_string("text");
      const Encoding encoding = tokenizer->encode(text, {.add_special_tokens = false});
      EXPECT_EQ(tokenizer->decode(encoding.ids, SkipSpecial::kNo), text) << name;
    }
    count.pass();
  }
}

TEST(TokenizerReference, reference_streaming) {
  GALLEY_NEED_REFERENCE(folder, "tokens");
  GALLEY_NEED_SMOLLM2(smollm2);
  CaseCount count("tokens/streaming.jsonl");
  std::map<std::string, std::optional<Tokenizer>> tokenizers;
  for (const Json& row : testing::read_json_lines(path_join(folder, "streaming.jsonl"))) {
    const std::string name = row.get_string("tokenizer");
    if (!tokenizers.contains(name)) {
      tokenizers[name] = load_or_refuse(tokenizer_path(name), name, &count);
    }
    const std::optional<Tokenizer>& tokenizer = tokenizers[name];
    if (!tokenizer) continue;
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, row.get_string("id"));
    const std::vector<int32_t> ids = int_list(row.at("ids"));
    const Json::Array& pieces = row.at("pieces").as_array();
    ASSERT_EQ(pieces.size(), ids.size());
    StreamDecoder decoder(*tokenizer);
    std::string all;
    for (size_t i = 0; i < ids.size(); ++i) {
      const std::string piece = decoder.push(ids[i]);
      EXPECT_EQ(piece, pieces[i].as_string()) << i;
      all += piece;
    }
    const std::string rest = decoder.flush();
    EXPECT_EQ(rest, row.get_string("flush"));
    EXPECT_EQ(all + rest, row.get_string("full"));
    EXPECT_EQ(tokenizer->decode(ids, SkipSpecial::kNo), row.get_string("full"));
    count.pass();
  }
}

TEST(TokenizerReference, reference_edges_of_every_part) {
  GALLEY_NEED_REFERENCE(folder, "tokens");
  CaseCount count("tokens/vocab_edges.jsonl");
  std::map<std::string, std::optional<Tokenizer>> tokenizers;
  for (const std::string& file : testing::list_directory(path_join(folder, "edges"))) {
    if (!file.ends_with(".json")) continue;
    const std::string name = file.substr(0, file.size() - 5);
    tokenizers[name] = load_or_refuse(path_join(folder, "edges/" + file), name, &count);
  }
  for (const Json& row : testing::read_json_lines(path_join(folder, "vocab_edges.jsonl"))) {
    const std::string name = row.get_string("tokenizer");
    ASSERT_TRUE(tokenizers.contains(name)) << name;
    const std::optional<Tokenizer>& tokenizer = tokenizers[name];
    if (!tokenizer) continue;
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, row.get_string("id"));
    const std::string text = row.get_string("text");
    if (row.contains("error")) {
      EXPECT_THROW(tokenizer->encode(text), Error);
    } else {
      check_row(*tokenizer, text, row);
      // Streaming gives the same text, whatever the decoder.
      StreamDecoder decoder(*tokenizer);
      std::string all;
      for (const int32_t id : int_list(row.at("ids"))) all += decoder.push(id);
      EXPECT_EQ(all + decoder.flush(), row.get_string("decode"));
    }
    count.pass();
  }
}

}  // namespace
}  // namespace galley::text
