#include "engine/device/bench_record.h"

#include <gtest/gtest.h>

#include <limits>

#include "engine/core/error.h"

namespace galley::device {
namespace {

BenchRecord record() {
  BenchRecord record;
  record.name = "forward q/o f32 M=8";
  record.unit = "ms";
  record.value = spread_of({2, 1, 3});
  record.fraction = 0.625;
  record.limit = "f32 fma avx512";
  record.rate = 75.5;
  record.rate_unit = "GF/s";
  record.kernels = "avx512";
  record.threads = 2;
  return record;
}

TEST(BenchRecord, spread_is_median_and_ends) {
  const Spread odd = spread_of({5, 1, 3});
  EXPECT_EQ(odd.median, 3);
  EXPECT_EQ(odd.lowest, 1);
  EXPECT_EQ(odd.highest, 5);
  EXPECT_EQ(spread_of({4, 1, 2, 8}).median, 3);
  EXPECT_EQ(spread_of({7}).median, 7);
  EXPECT_THROW(spread_of({}), Error);
}

TEST(BenchRecord, json_has_every_key) {
  const Json json = to_json(record(), "a processor");
  EXPECT_EQ(json.at("name").as_string(), "forward q/o f32 M=8");
  EXPECT_EQ(json.at("unit").as_string(), "ms");
  EXPECT_EQ(json.at("value").as_double(), 2);
  EXPECT_EQ(json.at("spread").as_array().at(0).as_double(), 1);
  EXPECT_EQ(json.at("spread").as_array().at(1).as_double(), 3);
  EXPECT_EQ(json.at("fraction").as_double(), 0.625);
  EXPECT_EQ(json.at("limit").as_string(), "f32 fma avx512");
  EXPECT_EQ(json.at("rate").as_double(), 75.5);
  EXPECT_EQ(json.at("rate_unit").as_string(), "GF/s");
  EXPECT_EQ(json.at("kernels").as_string(), "avx512");
  EXPECT_EQ(json.at("threads").as_int(), 2);
  EXPECT_EQ(json.at("machine").as_string(), "a processor");
  EXPECT_FALSE(json.at("version").as_string().empty());
  EXPECT_TRUE(json.at("loss").is_null());
  EXPECT_EQ(json.dump().find('\n'), std::string::npos);
}

TEST(BenchRecord, what_is_not_known_is_null) {
  BenchRecord bare;
  bare.name = "limit memory read";
  const Json json = to_json(bare, "a processor");
  for (const char* key :
       {"fraction", "limit", "rate", "rate_unit", "loss", "gradient_norm", "kernels"}) {
    EXPECT_TRUE(json.at(key).is_null()) << key;
  }
}

TEST(BenchRecord, line_has_unit_rate_and_fraction) {
  const std::string line = to_line(record());
  for (const char* part : {"forward q/o f32 M=8", "avx512", "2 thr", " 2 ms", "(1 - 3)",
                           "75.5 GF/s", "62.5 % of f32 fma avx512"}) {
    EXPECT_NE(line.find(part), std::string::npos) << part << " in " << line;
  }
  BenchRecord bare = record();
  bare.fraction.reset();
  bare.rate.reset();
  EXPECT_EQ(to_line(bare).find('%'), std::string::npos);
}

}  // namespace
}  // namespace galley::device
