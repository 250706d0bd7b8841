#include "launcher/binding.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <thread>

#include "engine/core/processors.h"

namespace galley::launcher {
namespace {

BoundBy of(std::map<std::string, std::string> values) {
  return bound_by(Environment(std::move(values)));
}

TEST(BoundBy, is_read_from_what_the_launcher_leaves_in_the_environment) {
  const std::string bound = "OMPI_MCA_orte_bound_at_launch";
  EXPECT_EQ(of({}), BoundBy::kNobody);
  EXPECT_EQ(of({{bound, "1"}}), BoundBy::kMpirunDefault);
  EXPECT_EQ(of({{"OMPI_MCA_hwloc_base_binding_policy", "none"}}), BoundBy::kNobody);
  EXPECT_EQ(of({{bound, "1"}, {"OMPI_MCA_hwloc_base_binding_policy", "core"}}),
            BoundBy::kMpirunOption);
  EXPECT_EQ(of({{bound, "1"}, {"OMPI_MCA_rmaps_base_mapping_policy", "socket:PE=4"}}),
            BoundBy::kMpirunOption);
  EXPECT_EQ(of({{bound, "1"}, {"OMPI_MCA_rmaps_base_mapping_policy", "node"}}),
            BoundBy::kMpirunDefault);
  EXPECT_EQ(of({{"SLURM_CPU_BIND_TYPE", "mask_cpu:"}}), BoundBy::kSrun);
  EXPECT_EQ(of({{"SLURM_CPU_BIND_TYPE", "none"}}), BoundBy::kNobody);
  EXPECT_EQ(of({{"SLURM_CPU_BIND_TYPE", "mask_cpu:"}, {"OMPI_COMM_WORLD_RANK", "0"}}),
            BoundBy::kNobody);  // mpirun inside of the step
  for (const BoundBy by :
       {BoundBy::kNobody, BoundBy::kMpirunDefault, BoundBy::kMpirunOption, BoundBy::kSrun}) {
    EXPECT_EQ(bound_by_from_name(bound_by_name(by)), by);
  }
  EXPECT_EQ(bound_by_from_name("news"), BoundBy::kNobody);
}

class BindProcess : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(sched_getaffinity(0, sizeof before_, &before_), 0); }
  void TearDown() override { sched_setaffinity(0, sizeof before_, &before_); }
  cpu_set_t before_;
};

TEST_F(BindProcess, all_threads_go_to_the_given_processors) {
  std::atomic<bool> stop{false};
  std::thread side([&stop] {
    while (!stop) std::this_thread::yield();
  });
  const std::vector<int> one = {allowed_cpus().back()};
  std::string note;
  const std::vector<int> bound = bind_process(one, 1, &note);
  const std::vector<int> allowed = allowed_cpus();  // of all threads
  stop = true;
  side.join();
  EXPECT_EQ(bound, one);
  EXPECT_EQ(allowed, one);
  EXPECT_EQ(note, "");
}

TEST_F(BindProcess, what_the_system_refuses_leaves_the_threads_free_and_is_told) {
  std::string note;
  EXPECT_TRUE(bind_process({allowed_cpus().front(), 1000}, 2, &note).empty());
  EXPECT_NE(note.find("1000"), std::string::npos) << note;
  note.clear();
  EXPECT_TRUE(bind_process({allowed_cpus().front()}, 2, &note).empty());
  EXPECT_NE(note.find("2 threads"), std::string::npos) << note;
  note.clear();
  EXPECT_TRUE(bind_process({}, 2, &note).empty());
  EXPECT_EQ(note, "");
}

}  // namespace
}  // namespace galley::launcher
