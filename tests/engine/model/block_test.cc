#include "engine/model/block.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace galley::model {
namespace {

constexpr BlockKind kPlain{};
constexpr BlockKind kNormed{.qk_norm = true};

size_t at(Slot slot) { return static_cast<size_t>(slot); }
size_t at(Projection projection) { return static_cast<size_t>(projection); }

LayerRanks ranks_of(const std::vector<Projection>& projections) {
  LayerRanks ranks{};
  for (const Projection projection : projections) ranks[at(projection)] = 4;
  return ranks;
}

/// Every set of adapted linears, whether anything lies below, and both ways of backward.
template <typename Check>
void for_all_cases(const Check& check) {
  for (int set = 0; set < 1 << kNumProjections; ++set) {
    LayerRanks ranks{};
    for (size_t p = 0; p < kNumProjections; ++p) ranks[p] = (set >> p & 1) * 4;
    for (const bool below : {false, true}) {
      for (const bool recompute : {false, true}) {
        SCOPED_TRACE(std::to_string(set) + (below ? " below" : "") + (recompute ? " whole" : ""));
        check(ranks, below, recompute);
      }
    }
  }
}

TEST(Block, operations_read_what_was_written_before) {
  for (const BlockKind& kind : {kPlain, kNormed}) {
    std::array<bool, kNumSlots> written{};
    written[at(Slot::kInput)] = true;
    for (const BlockOperation& operation : block_operations(kind)) {
      for (const Slot slot : operation.inputs) EXPECT_TRUE(written[at(slot)]) << slot_name(slot);
      EXPECT_TRUE(!operation.has_residual || written[at(operation.residual)]);
      written[at(operation.output)] = true;
    }
    EXPECT_TRUE(written[at(Slot::kOutput)]);
    EXPECT_EQ(written[at(Slot::kQRaw)], kind.qk_norm);
    EXPECT_EQ(written[at(Slot::kKRaw)], kind.qk_norm);
  }
}

TEST(Block, the_plain_list_has_one_rotation_and_no_head_norms) {
  const auto& list = block_operations(kPlain);
  ASSERT_EQ(list.size(), 12u);
  EXPECT_EQ(list[4].op, BlockOp::kRotate);
  EXPECT_EQ(list[4].inputs, (std::vector<Slot>{Slot::kQ, Slot::kK}));
  for (const BlockOperation& operation : list) EXPECT_NE(operation.op, BlockOp::kHeadNorm);
}

TEST(Block, head_norms_stand_before_the_rotation_of_what_they_write) {
  const auto& list = block_operations(kNormed);
  ASSERT_EQ(list.size(), 15u);
  int num_norms = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].op != BlockOp::kHeadNorm) continue;
    ++num_norms;
    EXPECT_EQ(list[i + 1].op, BlockOp::kRotate);
    EXPECT_EQ(list[i + 1].inputs, std::vector<Slot>{list[i].output});
    EXPECT_NE(list[i].statistic, Slot::kInput);
  }
  EXPECT_EQ(num_norms, 2);
}

TEST(Block, widths_of_raw_heads_are_nothing_without_their_norms) {
  WorkerShape shape{.num_heads = 6, .num_kv_heads = 2, .head_dim = 10};
  for (const Slot slot : {Slot::kQRaw, Slot::kKRaw, Slot::kQRstd, Slot::kKRstd}) {
    EXPECT_EQ(slot_width(shape, slot, 0), 0);
  }
  shape.qk_norm = true;
  EXPECT_EQ(slot_width(shape, Slot::kQRaw, 0), 60);
  EXPECT_EQ(slot_width(shape, Slot::kKRaw, 0), 20);
  EXPECT_EQ(slot_width(shape, Slot::kQRstd, 0), 6);
  EXPECT_EQ(slot_width(shape, Slot::kKRstd, 0), 2);
}

/// Backward finds everything it reads: kept, or made again from what is there by then.
TEST(Block, what_is_made_again_is_made_from_what_is_there) {
  for (const BlockKind& kind : {kPlain, kNormed}) {
    for_all_cases([&](const LayerRanks& ranks, bool below, bool recompute) {
      const BlockBackward back = block_backward(kind, ranks, below, recompute);
      const auto& list = block_operations(kind);
      ASSERT_EQ(back.rerun.size(), list.size());
      std::array<bool, kNumSlots> there{};
      for (size_t i = 0; i < kNumSlots; ++i) there[i] = back.keep[i] == Keep::kKeep;
      std::array<int, kNumSlots> rotations{};
      for (size_t i = 0; i < list.size(); ++i) {
        const BlockOperation& operation = list[i];
        if (back.rerun[i] == Rerun::kNo) continue;
        for (const Slot slot : operation.inputs) EXPECT_TRUE(there[at(slot)]) << slot_name(slot);
        if (operation.op == BlockOp::kLinear && ranks[at(operation.projection)] > 0) {
          there[at(low_rank_slot(operation.projection))] = true;
        }
        if (back.rerun[i] == Rerun::kLowRank) continue;
        if (operation.op == BlockOp::kRotate) {
          // In place: what was kept must not be turned twice.
          for (const Slot slot : operation.inputs) {
            EXPECT_EQ(back.keep[at(slot)], Keep::kRecompute);
            ++rotations[at(slot)];
          }
        }
        there[at(operation.output)] = true;
        if (operation.statistic != Slot::kInput) there[at(operation.statistic)] = true;
      }
      for (int i = 0; i < kNumSlots; ++i) {
        const auto slot = static_cast<Slot>(i);
        EXPECT_TRUE(!back.reads(slot) || there[at(slot)]) << slot_name(slot);
      }
      for (const Slot slot : {Slot::kQ, Slot::kK}) {
        EXPECT_EQ(rotations[at(slot)], back.keep[at(slot)] == Keep::kRecompute ? 1 : 0);
      }
    });
  }
}

/// A raw query or key takes the place of the rotated one: with norms nothing more is kept.
TEST(Block, head_norms_keep_no_more_elements) {
  WorkerShape shape{.hidden = 32, .intermediate = 64, .num_heads = 4, .num_kv_heads = 2};
  shape.head_dim = 8;
  const auto kept = [&](const BlockKind& kind, const LayerRanks& ranks, bool below, bool whole) {
    shape.qk_norm = kind.qk_norm;
    const BlockBackward back = block_backward(kind, ranks, below, whole);
    int64_t elements = 0;
    for (int i = 0; i < kNumSlots; ++i) {
      const auto slot = static_cast<Slot>(i);
      if (back.keep[at(slot)] == Keep::kKeep) elements += slot_width(shape, slot, 4);
    }
    return elements;
  };
  for_all_cases([&](const LayerRanks& ranks, bool below, bool whole) {
    EXPECT_EQ(kept(kPlain, ranks, below, whole), kept(kNormed, ranks, below, whole));
  });
}

TEST(Block, only_norms_with_a_backward_keep_their_input) {
  const auto keeps = [](const BlockBackward& back, Slot slot) { return back.keep[at(slot)]; };
  BlockBackward back = block_backward(kNormed, ranks_of({Projection::kQ}), false, false);
  EXPECT_EQ(keeps(back, Slot::kQRaw), Keep::kKeep);
  EXPECT_EQ(keeps(back, Slot::kQ), Keep::kRecompute);
  EXPECT_EQ(keeps(back, Slot::kQRstd), Keep::kRecompute);
  EXPECT_EQ(keeps(back, Slot::kKRaw), Keep::kDrop);
  EXPECT_EQ(keeps(back, Slot::kK), Keep::kKeep);
  EXPECT_EQ(keeps(back, Slot::kKRstd), Keep::kDrop);
  EXPECT_FALSE(back.needs_gradient[at(Slot::kKRaw)]);
  EXPECT_TRUE(back.needs_gradient[at(Slot::kQRaw)]);

  back = block_backward(kNormed, ranks_of({Projection::kV}), false, false);
  EXPECT_EQ(keeps(back, Slot::kQ), Keep::kKeep);
  EXPECT_EQ(keeps(back, Slot::kQRaw), Keep::kDrop);

  back = block_backward(kNormed, ranks_of({}), true, false);
  for (const Slot slot : {Slot::kQRaw, Slot::kKRaw}) {
    EXPECT_EQ(keeps(back, slot), Keep::kKeep);
    EXPECT_TRUE(back.needs_gradient[at(slot)]);
  }
}

TEST(Block, a_plain_block_knows_nothing_of_raw_heads) {
  for_all_cases([&](const LayerRanks& ranks, bool below, bool recompute) {
    const BlockBackward back = block_backward(kPlain, ranks, below, recompute);
    for (const Slot slot : {Slot::kQRaw, Slot::kKRaw, Slot::kQRstd, Slot::kKRstd}) {
      EXPECT_EQ(back.keep[at(slot)], Keep::kDrop);
      EXPECT_FALSE(back.needs_gradient[at(slot)]);
    }
  });
}

}  // namespace
}  // namespace galley::model
