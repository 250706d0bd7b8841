#include "placement/cluster.h"

#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "tests/support/reference.h"

namespace galley::placement {
namespace {

Cluster read(const std::string& text) {
  const std::string path = path_join(testing::scratch_directory("cluster"), "cluster.toml");
  write_file_atomically(path, text);
  return read_cluster_file(path);
}

std::string error_of(const std::string& text) {
  try {
    read(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 78) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

TEST(ClusterFile, nodes_and_gpus_in_order) {
  const Cluster cluster = read(
      "[[node]]\nnames = \"n[1-2]\"\ngpus = [{ type = \"a100-40gb\", count = 2 }]\n"
      "[[node]]\nnames = \"n3\"\ngpus = [{ type = \"t4-16gb\" }, { type = { name = \"own\", memory "
      "= "
      "\"2GiB\", speed = 3 } }]\n");
  ASSERT_EQ(cluster.nodes.size(), 3u);
  ASSERT_EQ(cluster.gpus.size(), 6u);
  EXPECT_FALSE(cluster.emulated);
  EXPECT_EQ(cluster.gpu_name(0), "n1:gpu0");
  EXPECT_EQ(cluster.gpu_name(3), "n2:gpu1");
  EXPECT_EQ(cluster.gpu_name(5), "n3:gpu1");
  EXPECT_EQ(cluster.gpus[5].type.name, "own");
  EXPECT_EQ(cluster.gpus[5].type.memory_bytes, uint64_t{2} << 30);
  EXPECT_FALSE(cluster.gpus[0].type.emulated);
}

TEST(ClusterFile, emulation_and_memory_beside_a_name) {
  const Cluster cluster = read(
      "[cluster]\nemulate = true\n[[node]]\nnames = \"n1\"\n"
      "gpus = [{ type = \"tiny\", memory = \"100MiB\", count = 3, threads = 2 }]\n");
  ASSERT_EQ(cluster.gpus.size(), 3u);
  EXPECT_TRUE(cluster.emulated);
  EXPECT_TRUE(cluster.gpus[2].type.emulated);
  EXPECT_EQ(cluster.gpus[2].type.memory_bytes, uint64_t{100} << 20);
  EXPECT_EQ(cluster.gpus[2].threads, 2);
  EXPECT_NE(cluster.gpus[0].uuid, cluster.gpus[1].uuid);
}

TEST(ClusterFile, emulated_gpus_slower_than_the_fastest_are_throttled) {
  const std::string gpus =
      "[[node]]\nnames = \"n1\"\ngpus = [{ type = \"a\", memory = \"1GiB\", speed = 3 }, "
      "{ type = \"b\", memory = \"2GiB\" }, { type = \"c\", memory = \"1GiB\", speed = 1.5 }]\n";
  const Cluster emulated = read("[cluster]\nemulate = true\n" + gpus);
  EXPECT_EQ(emulated.gpus[0].type.slowdown, 1);
  EXPECT_EQ(emulated.gpus[1].type.slowdown, 3);
  EXPECT_EQ(emulated.gpus[2].type.slowdown, 2);
  EXPECT_EQ(cluster_from_json(to_json(emulated)).gpus[1].type.slowdown, 3);
  EXPECT_EQ(read(gpus).gpus[1].type.slowdown, 1) << "real cards are as fast as they are";
  const Cluster plain = read(
      "[cluster]\nemulate = true\n[[node]]\nnames = \"n1\"\n"
      "gpus = [{ type = \"a100-40gb\" }, { type = \"t4-16gb\" }]\n");
  for (const Gpu& gpu : plain.gpus) EXPECT_EQ(gpu.type.slowdown, 1);
}

TEST(ClusterFile, links_are_data_of_a_type) {
  const Cluster cluster = read(
      "[[node]]\nnames = \"n1\"\ngpus = [{ type = \"a100-40gb\" }, "
      "{ type = \"a100-40gb\", link_gb_s = 20, network_gb_s = 3 }]\n");
  EXPECT_GT(cluster.gpus[0].type.link_bytes_per_s, 1e11);
  EXPECT_EQ(cluster.gpus[1].type.link_bytes_per_s, 2e10);
  EXPECT_EQ(cluster.gpus[1].type.network_bytes_per_s, 3e9);
  EXPECT_EQ(cluster.gpus[1].type.memory_bytes, cluster.gpus[0].type.memory_bytes)
      << "the rest is as the table says";
  EXPECT_EQ(cluster.gpus[1].type.peak_bf16_flops, cluster.gpus[0].type.peak_bf16_flops);
  expect_in(
      error_of("[[node]]\nnames = \"n1\"\ngpus = [{ type = \"a100-40gb\", link_gbs = 20 }]\n"),
      "did you mean \"link_gb_s\"?");
  expect_in(
      error_of("[[node]]\nnames = \"n1\"\ngpus = [{ type = \"a100-40gb\", link_gb_s = 0 }]\n"),
      "link_gb_s must be a number above 0");
}

TEST(ClusterFile, json_round_trip) {
  const Cluster cluster = read(
      "[cluster]\nemulate = true\n[[node]]\nnames = \"n[1-2]\"\n"
      "gpus = [{ type = \"a100-40gb\", count = 2 }]\n");
  EXPECT_EQ(to_json(cluster_from_json(to_json(cluster))).dump(), to_json(cluster).dump());
}

TEST(ClusterFile, faults_name_line_and_nearest_key) {
  const std::string node = "[[node]]\nnames = \"n1\"\n";
  expect_in(error_of(""), "[[node]]");
  expect_in(error_of("[clustr]\n" + node), "did you mean \"cluster\"?");
  expect_in(error_of("cluster = 3\n"), "[cluster]");
  expect_in(error_of("[cluster]\nemulat = true\n"), "did you mean \"emulate\"?");
  expect_in(error_of("[cluster]\nemulate = 1\n"), "true or false");
  expect_in(error_of(node), "needs gpus");
  expect_in(error_of("[[node]]\ngpus = []\n"), "needs names");
  expect_in(error_of("[[node]]\nnames = \"n[2-1]\"\n"), "cluster.toml:2");
  expect_in(error_of(node + "gpus = [{ count = 2 }]\n"), "needs a \"type\"");
  expect_in(error_of(node + "gpus = [3]\n"), "must be a table");
  const std::string misspelt = error_of(node + "gpus = [{ type = \"a100-40g\" }]\n");
  expect_in(misspelt, "cluster.toml:3: ");
  expect_in(misspelt, "did you mean \"a100-40gb\"");
  expect_in(error_of(node + "gpus = [{ type = \"a100-40gb\", cuont = 2 }]\n"),
            "did you mean \"count\"?");
  expect_in(error_of(node + "gpus = [{ type = \"a100-40gb\", count = 0 }]\n"), "count");
  expect_in(error_of(node + "gpus = [{ type = 3 }]\n"), "type");
  expect_in(error_of(node + "gpus = [{ type = \"a100-40gb\" }]\n" + node +
                     "gpus = [{ type = \"a100-40gb\" }]\n"),
            "listed twice");
  expect_in(error_of("[[node]]\nnames = \"n[1-1000]\"\n"
                     "gpus = [{ type = \"a100-40gb\", count = 65536 }]\n"),
            "more than");
}

TEST(ClusterFile, a_missing_file_is_66) {
  try {
    read_cluster_file("/no/such/cluster.toml");
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 66);
  }
}

TEST(ClusterFile, the_example_has_two_types) {
  const Cluster cluster = read_cluster_file("examples/cluster.toml");
  ASSERT_EQ(cluster.gpus.size(), 2u);
  EXPECT_TRUE(cluster.emulated);
  EXPECT_NE(cluster.gpus[0].type.name, cluster.gpus[1].type.name);
}

}  // namespace
}  // namespace galley::placement
