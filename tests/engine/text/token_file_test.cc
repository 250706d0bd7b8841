#include "engine/text/token_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/random.h"
#include "engine/core/strings.h"
#include "tests/engine/text/rows_tiny_tokenizer.h"
#include "tests/support/reference.h"

namespace galley::text {
namespace {

using testing::chatml;
using testing::marked_chatml;
using testing::plain_chatml;
using testing::tiny_special_tokens;
using testing::tiny_tokenizer;

class TokenFileTest : public ::testing::Test {
 protected:
  std::string put(const std::string& name, std::string_view text) {
    const std::string path = path_join(folder_, name);
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  static RowTokenizer rows(const RowOptions& options = {}) {
    const ChatTemplate chat = plain_chatml();
    return RowTokenizer(tiny_tokenizer(), &chat, tiny_special_tokens(), options);
  }
  std::string folder_ = galley::testing::scratch_directory("tokens");
  std::string output_ = path_join(folder_, "job.bin");
};

constexpr std::string_view kTexts =
    "{\"text\":\"abc\"}\n\n{\"prompt\":\"ab\",\"completion\":\"c\"}\n";
constexpr std::string_view kChat =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},"
    "{\"role\":\"assistant\",\"content\":\"a\"}]}\n";

TEST_F(TokenFileTest, rows_come_back_with_their_places) {
  const std::vector<std::string> paths = {put("a.jsonl", kTexts), put("b.jsonl", kChat)};
  const RowTokenizer tokenizer = rows();
  const PrepareResult result = prepare_tokens(paths, tokenizer, output_);
  ASSERT_TRUE(result.ok) << result.message();
  EXPECT_FALSE(result.reused);
  const TokenFile file = TokenFile::open(output_, TokenFileCheck::kContent);
  ASSERT_EQ(file.num_rows(), 3u);
  const TokenRowView second = file.row(1);
  EXPECT_EQ(second.line, 3u);
  EXPECT_EQ(second.input, 0u);
  EXPECT_EQ(file.row(2).input, 1u);
  uint64_t tokens = 0, targets = 0;
  size_t index = 0;
  for (const std::string& path : paths) {
    const Dataset data = Dataset::read(path);
    for (size_t i = 0; i < data.num_rows(); ++i, ++index) {
      const TokenRow expected = tokenizer.convert(data.row(i)).row;
      const TokenRowView got = file.row(index);
      EXPECT_EQ(std::vector<int32_t>(got.ids.begin(), got.ids.end()), expected.ids);
      std::vector<int32_t> labels = expected.labels;
      labels[0] = kNoLoss;
      EXPECT_EQ(got.labels(), labels);
      EXPECT_EQ(got.num_targets,
                static_cast<size_t>(std::count_if(labels.begin(), labels.end(),
                                                  [](int32_t label) { return label != kNoLoss; })));
      EXPECT_EQ(file.row_length(index), expected.ids.size());
      EXPECT_EQ(reinterpret_cast<uintptr_t>(got.ids.data()) % 8, 0u);
      tokens += got.ids.size();
      targets += got.num_targets;
    }
  }
  EXPECT_EQ(file.num_tokens(), tokens);
  EXPECT_EQ(file.num_targets(), targets);
  EXPECT_EQ(result.summary.to_json(), file.summary().to_json());
  uint64_t rows_in_histogram = 0, tokens_in_histogram = 0;
  for (const LengthBucket& bucket : file.summary().histogram) {
    rows_in_histogram += bucket.num_rows;
    tokens_in_histogram += bucket.num_tokens;
    EXPECT_LE(bucket.num_tokens, bucket.num_rows * bucket.upper);
    EXPECT_GT(bucket.num_tokens * 2, bucket.num_rows * bucket.upper);
  }
  EXPECT_EQ(rows_in_histogram, 3u);
  EXPECT_EQ(tokens_in_histogram, tokens);
}

TEST_F(TokenFileTest, the_same_inputs_reuse_it_and_edits_are_noticed) {
  const std::string path = put("a.jsonl", kTexts);
  EXPECT_FALSE(prepare_tokens({path}, rows(), output_).reused);
  const std::string before = read_file(output_);
  const PrepareResult again = prepare_tokens({path}, rows(), output_);
  EXPECT_TRUE(again.reused && again.ok);
  EXPECT_EQ(again.summary.num_rows, 2u);
  EXPECT_EQ(read_file(output_), before);
  put("a.jsonl", cat(kTexts, kTexts));
  EXPECT_FALSE(prepare_tokens({path}, rows(), output_).reused);
  EXPECT_EQ(TokenFile::open(output_).num_rows(), 4u);
  EXPECT_FALSE(prepare_tokens({path}, rows({.max_length = 3}), output_).reused);
  EXPECT_FALSE(prepare_tokens({path}, rows({.loss = LossOn::kAll}), output_).reused);
  const ChatTemplate other = marked_chatml();
  const RowTokenizer marked(tiny_tokenizer(), &other, tiny_special_tokens(), {});
  EXPECT_FALSE(prepare_tokens({path}, marked, output_).reused);
  EXPECT_TRUE(prepare_tokens({path}, marked, output_).reused);
  EXPECT_EQ(token_inputs_hash({path}, marked), TokenFile::open(output_).inputs_hash());
}

TEST_F(TokenFileTest, the_clock_counts_only_for_templates_that_print_it) {
  const std::string path = put("a.jsonl", kChat);
  RowOptions late;
  late.local_now.tm_year = 130;
  EXPECT_EQ(token_inputs_hash({path}, rows()), token_inputs_hash({path}, rows(late)));
  const ChatTemplate clock = chatml("{{ strftime_now('%Y') }}");
  const RowTokenizer a(tiny_tokenizer(), &clock, tiny_special_tokens(), {});
  const RowTokenizer b(tiny_tokenizer(), &clock, tiny_special_tokens(), late);
  EXPECT_NE(token_inputs_hash({path}, a), token_inputs_hash({path}, b));
}

TEST_F(TokenFileTest, faults_of_all_files_in_one_pass_and_nothing_written) {
  const ChatTemplate picky = chatml(
      "{% if m['content'] == 'bad' %}{{ raise_exception('bad turn') }}{% endif %}"
      "{{ m['content'] + '<|im_end|>\\n' }}");
  const RowTokenizer tokenizer(tiny_tokenizer(), &picky, tiny_special_tokens(), {});
  const std::string a =
      put("a.jsonl",
          cat("{\"messages\":[{\"role\":\"assistant\",\"content\":\"bad\"}]}\n", kChat, "{bad}\n"));
  const std::string b = put("b.jsonl", cat(kTexts, "{\"text\":5}\n"));
  const PrepareResult result = prepare_tokens({a, b}, tokenizer, output_);
  EXPECT_FALSE(result.ok);
  EXPECT_FALSE(path_exists(output_));
  EXPECT_EQ(result.summary.num_bad, 3u);
  const std::string told = result.message();
  const size_t first = told.find("a.jsonl:1:1: template: ");
  const size_t second = told.find("a.jsonl:3:2: json_syntax: ");
  const size_t third = told.find("b.jsonl:4:1: wrong_type: ");
  EXPECT_TRUE(first < second && second < third && third != std::string::npos) << told;
  EXPECT_NE(told.find("bad turn"), std::string::npos);
  try {
    result.require_ok();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), Reason::kBadData);
  }
  EXPECT_EQ(galley::testing::list_directory(folder_).size(), 2u);  // no temporary left

  const PrepareResult skipped = prepare_tokens({a, b}, tokenizer, output_, {BadRows::kSkip, {}});
  EXPECT_TRUE(skipped.ok);
  EXPECT_EQ(skipped.summary.num_bad, 3u);
  EXPECT_EQ(TokenFile::open(output_).num_rows(), 3u);
}

TEST_F(TokenFileTest, a_file_that_is_no_data_is_never_skipped) {
  const std::string a = put("a.jsonl", kTexts);
  const std::string b = put("b.jsonl", "");
  EXPECT_FALSE(prepare_tokens({a, b}, rows(), output_, {BadRows::kSkip, {}}).ok);
  EXPECT_FALSE(path_exists(output_));
  EXPECT_THROW(prepare_tokens({folder_ + "/none"}, rows(), output_), Error);
}

TEST_F(TokenFileTest, a_dry_run_counts_and_writes_nothing) {
  const std::string path = put("a.jsonl", kTexts);
  const PrepareResult result = prepare_tokens({path}, rows(), "");
  EXPECT_TRUE(result.ok);
  EXPECT_EQ(result.summary.num_rows, 2u);
  EXPECT_EQ(galley::testing::list_directory(folder_).size(), 1u);
}

TEST_F(TokenFileTest, threads_do_not_change_the_file) {
  std::string text;
  for (int i = 0; i < 2500; ++i) {
    text += i % 7 == 0 ? std::string(kChat) : cat("{\"text\":\"row number ", i * i, "\"}\n");
  }
  const std::string path = put("a.jsonl", text);
  prepare_tokens({path}, rows(), output_);
  PrepareOptions options;
  options.num_threads = 3;
  EXPECT_EQ(prepare_tokens({path}, rows(), output_ + "2", options).summary.num_rows, 2500u);
  EXPECT_EQ(read_file(output_ + "2"), read_file(output_));
  const RowTokenizer no_end(tiny_tokenizer(), nullptr, {}, {});
  EXPECT_THROW(prepare_tokens({path}, no_end, output_ + "3", options), Error);
}

TEST_F(TokenFileTest, weights_between_are_refused_by_name) {
  const std::string path = put(
      "a.jsonl",
      R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a","loss_weight":0.5}]})");
  const PrepareResult result = prepare_tokens({path}, rows(), output_);
  EXPECT_FALSE(result.ok);
  EXPECT_NE(result.message().find("unsupported: a loss_weight other than 0 and 1 is not supported"),
            std::string::npos);
}

TEST_F(TokenFileTest, changed_bytes_are_noticed) {
  const std::string path = put("a.jsonl", cat(kTexts, kChat));
  prepare_tokens({path}, rows(), output_);
  const std::string good = read_file(output_);
  Random random(4, random_stream("token file"));
  for (int i = 0; i < 300; ++i) {
    std::string bad = good;
    if (i % 3 == 0) {
      bad.resize(random.below(bad.size()));
    } else {
      bad[random.below(bad.size())] ^= static_cast<char>(1 + random.below(255));
    }
    const std::string broken = put("broken.bin", bad);
    try {
      TokenFile::open(broken, TokenFileCheck::kContent);
      FAIL() << "a changed file was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kBadData);
    }
    try {  // without the checksum it may open, but every row stays inside the file
      const TokenFile file = TokenFile::open(broken);
      for (size_t row = 0; row < file.num_rows(); ++row) file.row(row).labels();
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kBadData);
    }
  }
  put("job.bin", good.substr(0, good.size() / 2));
  const PrepareResult again = prepare_tokens({path}, rows(), output_);
  EXPECT_TRUE(again.ok);
  EXPECT_FALSE(again.reused);
  EXPECT_EQ(read_file(output_), good);
}

TEST_F(TokenFileTest, pain_P188_the_highest_id_is_known_before_a_model_is_loaded) {
  // Embeddings may be longer than the tokenizer; that they are not shorter is checked with this.
  const std::string path = put("a.jsonl", "{\"prompt\":\"a\",\"completion\":\"be\"}\n");
  EXPECT_EQ(prepare_tokens({path}, rows(), output_).summary.highest_id, 260);
  EXPECT_EQ(TokenFile::open(output_).summary().highest_id, 260);
}

TEST_F(TokenFileTest, pain_P084_rows_without_target_never_reach_training) {
  // No assistant turn; a target that truncation takes; a single token, whose label no loss uses.
  const std::string path = put(
      "a.jsonl", cat(kChat, "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}\n",
                     "{\"prompt\":\"a very long prompt, longer than the bound of the sequence\","
                     "\"completion\":\"x\"}\n{\"text\":\"\"}\n"));
  const PrepareResult result = prepare_tokens({path}, rows({.max_length = 50}), output_);
  ASSERT_TRUE(result.ok) << result.message();
  const TokenFile file = TokenFile::open(output_);
  ASSERT_EQ(file.num_rows(), 1u);
  EXPECT_GT(file.row(0).num_targets, 0u);
  EXPECT_EQ(result.summary.num_no_target, 2u);
  EXPECT_EQ(result.summary.num_no_target_after_truncation, 1u);
}

TEST_F(TokenFileTest, pain_P085_dropped_rows_are_counted_and_told) {
  const std::string path =
      put("a.jsonl", cat(kTexts, "{\"prompt\":\"0123456789\",\"completion\":\"x\"}\n"));
  const PrepareResult result = prepare_tokens({path}, rows({.max_length = 6}), output_);
  EXPECT_EQ(result.summary.describe(),
            "2 rows, 8 tokens (5 with loss), longest 4; 1 dropped without target after truncation");
  const std::string lost = put("b.jsonl", "{\"prompt\":\"0123456789\",\"completion\":\"x\"}\n");
  const PrepareResult none = prepare_tokens({lost}, rows({.max_length = 6}), output_ + "2");
  EXPECT_FALSE(none.ok);
  EXPECT_NE(none.message().find("no row is left to train on (0 without target, 1 without"),
            std::string::npos);
  EXPECT_FALSE(path_exists(output_ + "2"));
}

}  // namespace
}  // namespace galley::text
