#include "engine/core/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "engine/core/error.h"
#include "engine/core/json.h"
#include "engine/core/strings.h"
#include "tests/support/reference.h"

namespace galley {
namespace {

template <class Call>
std::string refusal(Reason reason, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), reason) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing is refused";
  return "";
}

TEST(File, a_named_pipe_is_refused_at_once) {
  const std::string path = galley::testing::scratch_directory("file") + "/pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  for (const std::string& text : {refusal(Reason::kMissingPath, [&] { read_file(path); }),
                                  refusal(Reason::kMissingPath, [&] { MappedFile{path}; })}) {
    EXPECT_NE(text.find(path), std::string::npos) << text;
    EXPECT_NE(text.find("pipe"), std::string::npos) << text;
  }
}

TEST(File, a_device_is_refused_at_once) {
  refusal(Reason::kMissingPath, [] { read_file("/dev/zero"); });
  refusal(Reason::kMissingPath, [] { MappedFile{"/dev/zero"}; });
}

TEST(File, nothing_but_a_file_is_ever_replaced) {
  const std::string folder = galley::testing::scratch_directory("file");
  ASSERT_EQ(mkfifo((folder + "/pipe").c_str(), 0600), 0);
  make_directories(folder + "/directory");
  for (const std::string& path : {folder + "/pipe", folder + "/directory"}) {
    refusal(Reason::kCannotCreate, [&] { write_file_atomically(path, "text"); });
  }
  struct stat status {};
  ASSERT_EQ(stat((folder + "/pipe").c_str(), &status), 0);
  EXPECT_TRUE(S_ISFIFO(status.st_mode));
}

TEST(File, an_output_without_parent_cannot_be_created) {
  const std::string folder = galley::testing::scratch_directory("file");
  refusal(Reason::kCannotCreate, [&] { write_file_atomically(folder + "/none/a", "text"); });
  refusal(Reason::kCannotCreate, [] { make_directories("/proc/none"); });
}

TEST(File, what_a_shell_hands_over_is_read_to_its_end) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const FileDescriptor reader(ends[0]);
  FileDescriptor writer(ends[1]);
  ASSERT_EQ(write(writer.get(), "handed over", 11), 11);
  writer.reset();
  EXPECT_EQ(read_file(cat("/dev/fd/", reader.get())), "handed over");
}

TEST(File, an_lfs_pointer_is_named_where_json_is_expected) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
  const std::string text = refusal(
      Reason::kBadModel, [&] { parse_json_or_throw(pointer, "m/config.json", Reason::kBadModel); });
  EXPECT_NE(text.find("m/config.json"), std::string::npos) << text;
  EXPECT_NE(text.find("git lfs pull"), std::string::npos) << text;
}

}  // namespace
}  // namespace galley
