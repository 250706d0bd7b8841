#include "engine/model/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "engine/core/error.h"
#include "engine/core/random.h"
#include "engine/core/strings.h"
#include "tests/support/reference.h"

namespace galley::model {
namespace {

std::string file_text(const std::string& header, size_t data_bytes) {
  const uint64_t bytes = header.size();
  std::string text(reinterpret_cast<const char*>(&bytes), 8);
  return text + header + std::string(data_bytes, '\1');
}

class Safetensors : public ::testing::Test {
 protected:
  /// Opens a file with this text; the refusal's text, empty when it is taken.
  std::string refusal(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
    try {
      const SafetensorsFile file = SafetensorsFile::open(path_);
      // Touch every byte that a tensor claims, so that a sanitizer or a fault would show.
      uint64_t sum = 0;
      for (const StoredTensor& tensor : file.tensors()) {
        for (uint64_t i = 0; i < tensor.num_bytes; ++i)
          sum += static_cast<uint8_t>(tensor.bytes[i]);
      }
      return sum == ~uint64_t{0} ? "impossible" : "";
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kBadModel) << error.what();
      EXPECT_NE(std::string(error.what()).find(path_), std::string::npos) << error.what();
      return error.what();
    }
  }
  void expect_refused(const std::string& header, size_t data_bytes, const std::string& named) {
    const std::string text = refusal(file_text(header, data_bytes));
    EXPECT_NE(text.find(named), std::string::npos) << header << "\n -> " << text;
  }

  std::string folder_ = galley::testing::scratch_directory("safetensors");
  std::string path_ = folder_ + "/model.safetensors";
};

const char* kGood = R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                    R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]}})";

TEST_F(Safetensors, reads_a_good_file) {
  write_file_atomically(path_, file_text(kGood, 22));
  const SafetensorsFile file = SafetensorsFile::open(path_);
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.find("b")->num_elements(), 3);
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_EQ(refusal(file_text(std::string(kGood) + "   ", 22)), "");  // padded header
}

TEST_F(Safetensors, round_trip_is_bit_equal) {
  const float a[] = {1.0f, -0.0f, 1e-40f, 3.4e38f};
  const uint16_t b[] = {0x3F80, 0x0001, 0x7BFF};
  write_safetensors(path_,
                    {{"x.a", DType::kF32, {2, 2}, a},
                     {"x.b", DType::kF16, {3}, b},
                     {"none", DType::kF32, {0, 4}, nullptr}},
                    {{"format", "pt"}});
  const SafetensorsFile file = SafetensorsFile::open(path_);
  EXPECT_EQ(std::memcmp(file.find("x.a")->bytes, a, sizeof a), 0);
  EXPECT_EQ(std::memcmp(file.find("x.b")->bytes, b, sizeof b), 0);
  EXPECT_EQ(file.find("x.b")->to_f32(),
            (std::vector<float>{0x1.cp0f + 0.125f, 0x1p-24f, 65504.0f}));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(galley::testing::list_directory(folder_).size(), 1u);
}

TEST_F(Safetensors, pain_P105_faults_of_one_file_are_named) {
  const std::string a = R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":)";
  expect_refused(kGood, 21, "1 missing");
  expect_refused(kGood, 23, "1 surplus bytes");
  expect_refused(a + R"({"dtype":"F32","shape":[2],"data_offsets":[12,20]}})", 20, "overlaps");
  expect_refused(a + R"({"dtype":"F32","shape":[2],"data_offsets":[20,28]}})", 28,
                 "hole of 4 bytes");
  expect_refused(a + R"({"dtype":"F32","shape":[3],"data_offsets":[16,24]}})", 24, "need 12 bytes");
  expect_refused(a + R"({"dtype":"F8_E4M3","shape":[8],"data_offsets":[16,24]}})", 24, "F8_E4M3");
}

TEST_F(Safetensors, hostile_headers) {
  const std::string t = R"({"a":{"dtype":"F32","shape":)";
  expect_refused(t + R"([-1],"data_offsets":[0,4]}})", 4, "negative");
  expect_refused(t + R"([4294967296,4294967296,4],"data_offsets":[0,4]}})", 4, "too large");
  expect_refused(t + R"([1e30],"data_offsets":[0,4]}})", 4, "no integer");
  expect_refused(t + R"([1],"data_offsets":[4,0]}})", 4, "data_offsets");
  expect_refused(t + R"([1],"data_offsets":[-4,0]}})", 4, "data_offsets");
  expect_refused(t + R"([1],"data_offsets":[0]}})", 4, "data_offsets");
  expect_refused(t + R"([1],"data_offsets":[9223372036854775800,9223372036854775804]}})", 4,
                 "truncated");
  expect_refused(t + R"([1],"data_offsets":[0,4],"extra":1}})", 4, "extra");
  expect_refused(t + R"([1]}})", 4, "data_offsets");
  expect_refused(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "dtype");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                 R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                 4, "twice");
  expect_refused(R"({"a":7})", 0, "object");
  expect_refused(R"({"__metadata__":{"x":1}})", 0, "__metadata__");
  expect_refused(R"(["a"])", 0, "begin with '{'");
  expect_refused(std::string(4000, '{'), 0, "");
  EXPECT_NE(
      refusal("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 5\n").find("LFS"),
      std::string::npos);
  EXPECT_NE(refusal(""), "");
  std::string huge(16, '\xFF');
  EXPECT_NE(refusal(huge), "");
}

TEST_F(Safetensors, not_a_file) {
  for (const std::string& path : {folder_, folder_ + "/none", std::string("/dev/null")}) {
    try {
      SafetensorsFile::open(path);
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kMissingPath) << error.what();
    }
  }
}

TEST_F(Safetensors, every_truncation_is_refused) {
  const std::string text = file_text(kGood, 22);
  for (size_t length = 0; length < text.size(); ++length) {
    ASSERT_NE(refusal(text.substr(0, length)), "") << length;
  }
}

TEST_F(Safetensors, bit_flips_of_the_header_never_crash) {
  const std::string text = file_text(kGood, 22);
  const size_t header_end = text.size() - 22;
  for (size_t i = 0; i < header_end; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string mutated = text;
      mutated[i] = static_cast<char>(mutated[i] ^ (1 << bit));
      refusal(mutated);  // refused with kBadModel, or still a valid file under other names
    }
  }
}

TEST_F(Safetensors, reference_files_with_random_damage) {
  GALLEY_NEED_REFERENCE(toy, "toys/llama_untied/model.safetensors");
  const std::string text = read_file(toy);
  uint64_t header = 0;
  std::memcpy(&header, text.data(), 8);
  Random random(11, 1);
  for (int round = 0; round < 400; ++round) {
    std::string mutated = text.substr(0, 8 + header + 64);
    const int edits = 1 + static_cast<int>(random.below(3));
    for (int i = 0; i < edits; ++i)
      mutated[random.below(8 + header)] = static_cast<char>(random.below(256));
    EXPECT_NE(refusal(mutated), "");  // the data is cut off in any case
  }
  for (size_t cut = 1; cut < 8 + header; cut += 37) ASSERT_NE(refusal(text.substr(0, cut)), "");
}

TEST_F(Safetensors, a_file_that_shrinks_while_it_is_open_is_an_error_and_no_signal) {
  const std::vector<float> values(5000, 1.5f);
  write_safetensors(path_, {{"w", DType::kF32, {50, 100}, values.data()}}, {});
  const SafetensorsFile file = SafetensorsFile::open(path_);
  const StoredTensor& tensor = *file.find("w");
  EXPECT_EQ(tensor.to_f32(), values);
  float last = 0;
  tensor.read(4999 * sizeof(float), &last, sizeof last);
  EXPECT_EQ(last, 1.5f);
  std::filesystem::resize_file(path_, 4096);
  tensor.read_ahead(0, 20000);  // a hint that comes too late
  tensor.read(0, &last, sizeof last);
  for (const auto& use : {std::function<void()>([&] { tensor.to_f32(); }),
                          std::function<void()>([&] { tensor.read(19996, &last, sizeof last); })}) {
    try {
      use();
      FAIL() << "read what is not there";
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kIo);
      EXPECT_NE(std::string(error.what()).find(path_), std::string::npos) << error.what();
    }
  }
}

TEST_F(Safetensors, a_moved_file_still_feeds_its_tensors) {
  const std::vector<float> values = {1, 2, 3};
  write_safetensors(path_, {{"w", DType::kF32, {3}, values.data()}}, {});
  SafetensorsFile first = SafetensorsFile::open(path_);
  const SafetensorsFile second = std::move(first);
  EXPECT_EQ(second.find("w")->to_f32(), values);
}

}  // namespace
}  // namespace galley::model
