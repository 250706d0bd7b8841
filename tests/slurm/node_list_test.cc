#include "slurm/node_list.h"

#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::slurm {
namespace {

std::string expanded(std::string_view list) { return join(expand_node_list(list), " "); }

TEST(NodeList, the_forms_that_slurm_prints) {
  EXPECT_EQ(expanded("n1"), "n1");
  EXPECT_EQ(expanded("n[1-2,4]"), "n1 n2 n4");
  EXPECT_EQ(expanded("n[1,3]"), "n1 n3");
  EXPECT_EQ(expanded("gpu[098-101]"), "gpu098 gpu099 gpu100 gpu101");
  EXPECT_EQ(expanded("rack[1-2]n[01-03,07],login1"),
            "rack1n01 rack1n02 rack1n03 rack1n07 rack2n01 rack2n02 rack2n03 rack2n07 login1");
  EXPECT_EQ(expanded("node07,node09"), "node07 node09");
  EXPECT_EQ(expanded(" a1, b[2-3] "), "a1 b2 b3");
  EXPECT_EQ(expanded("c[5]-ib"), "c5-ib");
}

TEST(NodeList, text_that_is_no_list_is_78) {
  for (const char* list : {"", ",", "n[", "n]", "n[]", "n[3-1]", "n[a-b]", "n[1-2", "n1,,n2",
                           "n[[1]]", "n[1]]", "n[-1]", "../x", "a b"}) {
    try {
      expand_node_list(list);
      ADD_FAILURE() << "accepted: \"" << list << "\"";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 78) << list;
    }
  }
}

TEST(NodeList, huge_lists_are_refused_without_being_built) {
  for (const char* list : {"n[1-99999999]", "a[1-1000]b[1-1000]", "n[0-9223372036854775807]"}) {
    EXPECT_THROW(expand_node_list(list), Error) << list;
  }
  EXPECT_EQ(expand_node_list("n[1-65536]").size(), 65536u);
}

TEST(Counts, repeat_marks) {
  EXPECT_EQ(expand_counts("2(x2),1"), (std::vector<int>{2, 2, 1}));
  EXPECT_EQ(expand_counts("3,1"), (std::vector<int>{3, 1}));
  EXPECT_EQ(expand_counts("4(x2)"), (std::vector<int>{4, 4}));
  EXPECT_EQ(expand_counts("1"), (std::vector<int>{1}));
}

TEST(Counts, text_that_is_no_count_is_78) {
  for (const char* counts : {"", "x", "2(x", "2(x2", "2(x)", "2(x0)", "-1", "2,", "2(y2)"}) {
    try {
      expand_counts(counts);
      ADD_FAILURE() << "accepted: \"" << counts << "\"";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 78) << counts;
    }
  }
}

}  // namespace
}  // namespace galley::slurm
