#include "engine/text/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/core/error.h"
#include "engine/core/random.h"
#include "engine/core/strings.h"
#include "tests/support/reference.h"

namespace galley::text {
namespace {

using galley::testing::CaseCount;

PackStrategy strategy_of(const std::string& name) {
  if (name == "bfd") return PackStrategy::kBestFit;
  if (name == "bfd_split") return PackStrategy::kBestFitSplit;
  EXPECT_EQ(name, "wrapped");
  return PackStrategy::kWrapped;
}

PackSegment segment_of(const Json& json, uint32_t row) {
  return {row, static_cast<uint32_t>(json.as_array()[1].as_int()),
          static_cast<uint32_t>(json.as_array()[2].as_int())};
}

TEST(Packing, reference_made_up_lengths) {
  GALLEY_NEED_REFERENCE(path, "rows/packing.jsonl");
  CaseCount count("rows/packing");
  for (const Json& c : galley::testing::read_json_lines(path)) {
    SCOPED_TRACE(cat(c.get_string("id"), " ", c.get_string("strategy")));
    std::vector<uint32_t> lengths;
    for (const Json& length : c.at("lengths").as_array()) {
      lengths.push_back(static_cast<uint32_t>(length.as_int()));
    }
    std::vector<Pack> expected;
    for (const Json& pack : c.at("packs").as_array()) {
      expected.emplace_back();
      for (const Json& segment : pack.as_array()) {
        expected.back().push_back(
            segment_of(segment, static_cast<uint32_t>(segment.as_array()[0].as_int())));
      }
    }
    EXPECT_EQ(pack_segments(lengths, static_cast<uint32_t>(c.get_int("max_length")),
                            strategy_of(c.get_string("strategy"))),
              expected);
    count.pass();
  }
}

// The lengths of the named rows are those of the result files beside.
void check_packing_of(const std::string& folder, const std::string& name, CaseCount* count) {
  std::map<std::string, uint32_t> length_of;
  for (const Json& row : galley::testing::read_json_lines(folder + "/" + name + ".jsonl")) {
    length_of[row.get_string("id")] = static_cast<uint32_t>(row.get_int("full_length"));
  }
  for (const Json& c : galley::testing::read_json_lines(folder + "/" + name + "_packing.jsonl")) {
    SCOPED_TRACE(cat(name, " ", c.get_int("max_length"), " ", c.get_string("strategy")));
    std::vector<uint32_t> lengths;
    std::map<std::string, uint32_t> index_of;
    for (const Json& id : c.at("rows").as_array()) {
      index_of[id.as_string()] = static_cast<uint32_t>(lengths.size());
      lengths.push_back(length_of.at(id.as_string()));
    }
    std::vector<Pack> expected;
    for (const Json& pack : c.at("packs").as_array()) {
      expected.emplace_back();
      for (const Json& segment : pack.at("segments").as_array()) {
        expected.back().push_back(
            segment_of(segment, index_of.at(segment.as_array()[0].as_string())));
      }
    }
    EXPECT_EQ(pack_segments(lengths, static_cast<uint32_t>(c.get_int("max_length")),
                            strategy_of(c.get_string("strategy"))),
              expected);
    count->pass();
  }
}

TEST(Packing, reference_rows_of_the_tokenizers) {
  GALLEY_NEED_REFERENCE(folder, "rows");
  CaseCount count("rows/*_packing");
  constexpr std::string_view kEnd = "_packing.jsonl";
  for (const std::string& file : galley::testing::list_directory(folder)) {
    if (file.ends_with(kEnd)) {
      check_packing_of(folder, file.substr(0, file.size() - kEnd.size()), &count);
    }
  }
}

TEST(Packing, every_token_is_packed_once) {
  Random random(9, random_stream("packing"));
  for (int round = 0; round < 60; ++round) {
    std::vector<uint32_t> lengths(random.below(1500));
    for (uint32_t& length : lengths) length = static_cast<uint32_t>(random.below(70));
    const auto limit = static_cast<uint32_t>(1 + random.below(100));
    for (const auto strategy :
         {PackStrategy::kBestFit, PackStrategy::kBestFitSplit, PackStrategy::kWrapped}) {
      std::vector<uint32_t> packed(lengths.size());
      for (const Pack& pack : pack_segments(lengths, limit, strategy)) {
        uint32_t tokens = 0;
        for (const PackSegment& segment : pack) {
          tokens += segment.end - segment.begin;
          packed[segment.row] += segment.end - segment.begin;
        }
        EXPECT_GT(tokens, 0u);
        EXPECT_LE(tokens, limit);
      }
      for (size_t i = 0; i < lengths.size(); ++i) {
        EXPECT_EQ(packed[i],
                  strategy == PackStrategy::kBestFit ? std::min(lengths[i], limit) : lengths[i]);
      }
    }
  }
  EXPECT_THROW(pack_segments(std::vector<uint32_t>{1}, 0, PackStrategy::kWrapped), Error);
}

TEST(Packing, a_packer_used_again_gives_what_a_new_one_gives) {
  Random random(11, random_stream("packer"));
  RowPacker packer;
  for (int round = 0; round < 50; ++round) {
    std::vector<uint32_t> lengths(random.below(40));
    for (uint32_t& length : lengths) length = static_cast<uint32_t>(random.below(30));
    const uint64_t budget = 1 + random.below(60);
    packer.pack(lengths, budget);
    const auto expected = pack_rows(lengths, budget);
    ASSERT_EQ(packer.num_packs(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto rows = packer.rows(i);
      EXPECT_EQ(std::vector<uint32_t>(rows.begin(), rows.end()), expected[i]);
    }
  }
}

TEST(Packing, micro_batches_hold_whole_rows_within_the_budget) {
  Random random(10, random_stream("micro batches"));
  for (int round = 0; round < 200; ++round) {
    std::vector<uint32_t> lengths(random.below(64));
    uint64_t total = 0;
    for (uint32_t& length : lengths) {
      length = static_cast<uint32_t>(random.below(200));
      total += length;
    }
    const uint64_t budget = 1 + random.below(400);
    std::vector<int> seen(lengths.size());
    const auto batches = pack_rows(lengths, budget);
    int num_half_empty = 0;  // two such ones would have become one
    for (const auto& batch : batches) {
      uint64_t tokens = 0;
      for (const uint32_t row : batch) {
        tokens += lengths[row];
        ++seen[row];
      }
      EXPECT_TRUE(tokens <= budget || batch.size() == 1);
      num_half_empty += tokens * 2 <= budget ? 1 : 0;
      EXPECT_TRUE(std::is_sorted(batch.begin(), batch.end()));
    }
    for (size_t i = 0; i < lengths.size(); ++i) EXPECT_EQ(seen[i], lengths[i] > 0 ? 1 : 0);
    EXPECT_LE(num_half_empty, 1);
  }
  EXPECT_EQ(pack_rows(std::vector<uint32_t>{4, 9, 3, 2, 0, 1}, 6),
            (std::vector<std::vector<uint32_t>>{{1}, {0, 3}, {2, 5}}));
  EXPECT_TRUE(pack_rows({}, 8).empty());
}

}  // namespace
}  // namespace galley::text
