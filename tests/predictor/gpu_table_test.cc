#include "predictor/gpu_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "engine/core/error.h"

namespace galley::predictor {
namespace {

std::string error_of(const Json& description) {
  try {
    gpu_type_from_json(description, "here");
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 78);
    return error.what();
  }
  ADD_FAILURE() << "accepted " << description.dump();
  return "";
}

TEST(GpuTable, rows_are_distinct_and_whole) {
  std::set<std::string> names;
  for (const GpuType& type : gpu_table()) {
    SCOPED_TRACE(type.name);
    EXPECT_TRUE(names.insert(type.name).second);
    EXPECT_GT(type.memory_bytes, uint64_t{8} << 30);
    EXPECT_LT(type.memory_bytes, uint64_t{512} << 30);
    EXPECT_GT(type.bandwidth_bytes_per_s, 1e11);
    EXPECT_GT(type.peak_f32_flops, 1e12);
    EXPECT_GT(type.context_bytes, 0u);
    EXPECT_FALSE(type.emulated);
    EXPECT_EQ(gpu_type_by_name(type.name).memory_bytes, type.memory_bytes);
  }
  EXPECT_EQ(names.count(kHostTypeName), 0u) << "the host device is no row of the table";
}

TEST(GpuTable, unknown_name_tells_the_nearest) {
  try {
    gpu_type_by_name("a100-40g");
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 78);
    EXPECT_NE(std::string(error.what()).find("did you mean \"a100-40gb\""), std::string::npos)
        << error.what();
  }
}

TEST(GpuTable, described_types) {
  Json description = Json::object();
  description.set("name", "small").set("memory", "512MiB").set("speed", 2.5);
  const GpuType type = gpu_type_from_json(description, "here");
  EXPECT_EQ(type.memory_bytes, uint64_t{512} << 20);
  EXPECT_EQ(type.relative_speed, 2.5);
  EXPECT_GT(type.peak_f32_flops, 0);
}

TEST(GpuTable, faults_of_a_description_are_named) {
  Json base = Json::object();
  base.set("name", "x").set("memory", "1GiB");
  const auto with = [&](const std::string& key, const Json& value) {
    Json changed = base;
    changed.set(key, value);
    return error_of(changed);
  };
  EXPECT_NE(with("memroy", Json(1)).find("did you mean \"memory\""), std::string::npos);
  EXPECT_NE(with("memory", Json("much")).find("memory"), std::string::npos);
  EXPECT_NE(with("memory", Json(-1)).find("memory"), std::string::npos);
  for (const double speed : {0.0, -1.0, 1e-300, 1e308, double{NAN}, double{INFINITY}}) {
    EXPECT_NE(with("speed", Json(speed)).find("speed"), std::string::npos) << speed;
  }
  EXPECT_NE(with("link_gb_s", Json(double{NAN})).find("link_gb_s"), std::string::npos);
  EXPECT_NE(with("name", Json("a/b")).find("name"), std::string::npos);
  error_of(Json("a string"));
  error_of(Json::object());
  Json nameless = Json::object();
  nameless.set("memory", "1GiB");
  EXPECT_NE(error_of(nameless).find("needs a name"), std::string::npos);
}

}  // namespace
}  // namespace galley::predictor
