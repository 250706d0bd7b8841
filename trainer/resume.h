// Whether a checkpoint continues this job: same spec, data, tokenizer and model, or a refusal that
// names what differs; and what may change the last bits, as a note. Pure functions on values.
#pragma once

#include <string>

#include "trainer/checkpoint.h"

namespace galley::trainer {

/// Error(kBadCheckpoint) naming each thing that differs. `now` is the record that a checkpoint of
/// this run would have.
void require_same_job(const CheckpointRecord& saved, const CheckpointRecord& now,
                      const std::string& path);

/// "" when the continued run has the same bits as an uninterrupted one; else what differs.
std::string bits_note(const CheckpointRecord& saved, const CheckpointRecord& now);

}  // namespace galley::trainer
