#include "trainer/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "engine/core/error.h"
#include "engine/core/h5.h"
#include "engine/core/hash.h"
#include "engine/core/strings.h"
#include "engine/model/adapter_file.h"
#include "tests/engine/model/toy_folder.h"
#include "tests/support/reference.h"
#include "trainer/resume.h"
#include "trainer/run_job.h"

namespace galley::trainer {
namespace {

CheckpointState sample(int64_t step) {
  const model::ModelConfig config =
      model::parse_model_config(model::testing::toy_config_json(), "toy");
  CheckpointState state;
  CheckpointRecord& record = state.record;
  record.galley_version = "0.1.0";
  record.step = step;
  record.next_position = {1, 4};
  record.spec.model = "/models/toy";
  record.spec.lora = {.rank = 2, .targets = {"q_proj", "v_proj"}};
  record.spec_hash = model::spec_hash(record.spec);
  record.schedule = schedule_of(record.spec, 100);
  record.tokens_hash = "abc";
  record.tokens_inputs = Json::object().set("tokenizer", "t");
  record.model_fingerprint = "f";
  record.linears = model::adapted_linears(config, record.spec.lora);
  record.kernels = "portable";
  record.threads = 1;
  record.weight_dtype = "F32";
  state.values = model::initial_adapter(record.linears, model::LoraInit::kGaussian, 1);
  state.first_moments = model::initial_adapter(record.linears, model::LoraInit::kGaussian, 2);
  state.second_moments = model::initial_adapter(record.linears, model::LoraInit::kGaussian, 3);
  return state;
}

Reason reason_of_reading(const std::string& path) {
  try {
    read_checkpoint(path);
    return Reason::kOk;
  } catch (const Error& error) {
    return error.reason();
  }
}

class Checkpoint : public ::testing::Test {
 protected:
  std::string write(int64_t step, int keep = 9) {
    write_checkpoint(folder_, sample(step), keep);
    return checkpoint_path(folder_, step);
  }
  std::string folder_ = galley::testing::scratch_directory("checkpoint");
};

TEST_F(Checkpoint, round_trip_is_bit_equal) {
  const CheckpointState state = sample(7);
  write_checkpoint(folder_, state, 2);
  const CheckpointState back = read_checkpoint(checkpoint_path(folder_, 7));
  EXPECT_EQ(back.values, state.values);
  EXPECT_EQ(back.first_moments, state.first_moments);
  EXPECT_EQ(back.second_moments, state.second_moments);
  EXPECT_EQ(to_json(back.record), to_json(state.record));
  EXPECT_EQ(galley::testing::list_directory(folder_).size(), 1u);
}

TEST_F(Checkpoint, keeps_the_newest_and_finds_the_newest_whole_one) {
  for (int64_t step = 1; step <= 12; ++step) write(step, 3);
  EXPECT_EQ(galley::testing::list_directory(folder_),
            (std::vector<std::string>{"checkpoint-10.h5", "checkpoint-11.h5", "checkpoint-12.h5"}));
  EXPECT_EQ(newest_checkpoint_step(folder_), 12);
  std::filesystem::resize_file(checkpoint_path(folder_, 12), 100);
  EXPECT_EQ(newest_checkpoint_step(folder_), 11);
  std::ofstream(checkpoint_path(folder_, 11), std::ios::trunc).flush();
  std::vector<std::string> notes;
  const auto found = newest_checkpoint(folder_, &notes, PutAside::kYes);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->step, 10);
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_NE(notes[0].find("checkpoint-12.h5"), std::string::npos) << notes[0];
  EXPECT_TRUE(path_exists(folder_ + "/broken-checkpoint-12.h5"));
  EXPECT_EQ(newest_checkpoint_step(folder_ + "/nothing"), -1);
}

TEST_F(Checkpoint, every_damage_is_noticed_before_hdf5_sees_it) {
  const std::string path = write(3);
  const std::string good = read_file(path);
  const auto expect_broken = [&](const std::string& text, size_t where) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
    ASSERT_EQ(reason_of_reading(path), Reason::kBadCheckpoint) << where;
    ASSERT_EQ(newest_checkpoint_step(folder_), -1) << where;
  };
  for (size_t i = 0; i < good.size(); i += i < 520 ? 1 : 211) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
    expect_broken(bad, i);
  }
  for (size_t length = 0; length < good.size(); length += 499)
    expect_broken(good.substr(0, length), length);
  expect_broken(good + "x", good.size());
  std::ofstream(path, std::ios::binary | std::ios::trunc) << good;
  EXPECT_EQ(reason_of_reading(path), Reason::kOk);
}

TEST_F(Checkpoint, a_version_of_the_future_is_refused_not_skipped) {
  const std::string path = write(3);
  std::string text = read_file(path);
  text[8] = 2;
  const uint64_t head = hash64(text.data(), 56);
  std::memcpy(text.data() + 56, &head, 8);
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  EXPECT_EQ(reason_of_reading(path), Reason::kUnsupported);
  EXPECT_THROW(newest_checkpoint_step(folder_), Error);
}

TEST_F(Checkpoint, hdf5_reads_the_file_as_it_is) {
  const H5File file = H5File::open(write(3));
  EXPECT_EQ(file.list("adapter").size(), 8u);
  EXPECT_EQ(file.list("second_moments"), file.list("first_moments"));
  EXPECT_EQ(file.shape("adapter/base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"),
            (std::vector<int64_t>{2, 32}));
}

TEST_F(Checkpoint, exports_and_inspects) {
  const std::string path = write(3);
  export_checkpoint(path, folder_ + "/peft");
  const model::ModelConfig config =
      model::parse_model_config(model::testing::toy_config_json(), "toy");
  EXPECT_EQ(model::read_adapter(folder_ + "/peft", config).values, sample(3).values);
  const Json shown = inspect_checkpoint(path);
  EXPECT_EQ(shown.at("record").at("step").as_int(), 3);
  EXPECT_EQ(shown.at("tensors").as_array().size(), 24u);
  EXPECT_EQ(shown.at("bytes").as_int(), static_cast<int64_t>(file_bytes(path)));
  EXPECT_THROW(export_checkpoint(folder_ + "/none.h5", folder_ + "/x"), Error);
}

TEST_F(Checkpoint, pain_P084_a_state_that_is_not_finite_is_never_saved) {
  write(3);
  for (int part = 0; part < 3; ++part) {
    CheckpointState state = sample(4);
    std::vector<float>* parts[] = {&state.values, &state.first_moments, &state.second_moments};
    (*parts[part])[5] = std::numeric_limits<float>::quiet_NaN();
    try {
      write_checkpoint(folder_, state, 1);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), Reason::kNumerics);
    }
  }
  EXPECT_EQ(newest_checkpoint_step(folder_), 3);
}

TEST_F(Checkpoint, pain_P109_readers_never_see_half_a_file) {
  const std::string done = folder_ + "/done";
  const pid_t child = fork();
  if (child == 0) {
    while (!path_exists(done)) {
      for (int64_t step = 1; step <= 20; ++step) {
        const Reason reason = reason_of_reading(checkpoint_path(folder_, step));
        if (reason != Reason::kOk && reason != Reason::kMissingPath) _exit(1);
      }
    }
    _exit(0);
  }
  for (int64_t step = 1; step <= 20; ++step) write(step, 2);
  std::ofstream(done) << "x";
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_F(Checkpoint, another_job_is_refused_naming_what_differs) {
  const CheckpointRecord saved = sample(3).record;
  CheckpointRecord now = saved;
  EXPECT_NO_THROW(require_same_job(saved, now, "c.h5"));
  now.spec.learning_rate = 1;
  now.spec.lora.rank = 5;
  now.spec.priority = 4;
  now.spec_hash = model::spec_hash(now.spec);
  now.tokens_hash = "other";
  now.tokens_inputs = Json::object().set("tokenizer", "u");
  now.model_fingerprint = "g";
  try {
    require_same_job(saved, now, "c.h5");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), Reason::kBadCheckpoint);
    const std::string text = error.what();
    for (const char* named : {"c.h5", "lora.rank", "learning_rate", "tokenizer", "/models/toy"}) {
      EXPECT_NE(text.find(named), std::string::npos) << text;
    }
    EXPECT_EQ(text.find("priority"), std::string::npos) << text;
  }
}

TEST_F(Checkpoint, note_on_what_may_change_the_bits) {
  const CheckpointRecord saved = sample(3).record;
  CheckpointRecord now = saved;
  EXPECT_EQ(bits_note(saved, now), "");
  now.threads = 2;
  EXPECT_NE(bits_note(saved, now).find("threads 1 then, 2 now"), std::string::npos);
  now = saved;
  now.processor = "another";
  EXPECT_NE(bits_note(saved, now).find("processor"), std::string::npos);
}

}  // namespace
}  // namespace galley::trainer
