// Packing: which rows go together, so that no token of a batch is padding.
//
// Pure functions of row lengths; deterministic; safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace galley::text {

/// Rows of one global batch -> micro batches of at most `token_budget` tokens, whole rows only; a
/// row longer than the budget is alone in its micro batch. Best fit, longest rows first: micro
/// batches in order of opening, row numbers ascending within each. Rows of length 0 are left out.
std::vector<std::vector<uint32_t>> pack_rows(std::span<const uint32_t> lengths,
                                             uint64_t token_budget);

/// pack_rows() for one batch after another: the storage is used again, so that nothing is allocated
/// once the largest batch has come. One owner.
class RowPacker {
 public:
  /// Storage for batches of so many rows.
  explicit RowPacker(size_t max_rows = 0);
  void pack(std::span<const uint32_t> lengths, uint64_t token_budget);
  size_t num_packs() const { return packs_.size(); }
  /// Rows of a micro batch, ascending; valid until the next pack().
  std::span<const uint32_t> rows(size_t pack) const;

 private:
  struct OpenPack {
    uint64_t room = 0;
    uint64_t turn = 0;  // when it got this room
    size_t end = 0;     // of its rows in rows_
  };
  OpenPack& fullest_with_room(uint64_t length, uint64_t token_budget);

  std::vector<OpenPack> packs_;
  std::vector<uint32_t> order_, pack_of_, rows_;
  uint64_t turn_ = 0;
};

/// Tokens [begin, end) of a row.
struct PackSegment {
  uint32_t row = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
  bool operator==(const PackSegment&) const = default;
};
using Pack = std::vector<PackSegment>;

enum class PackStrategy {
  kBestFit,       // TRL's `bfd`: longest first into the fullest pack with room; long rows are cut
  kBestFitSplit,  // `bfd_split`: the same, long rows become several parts
  kWrapped,       // `wrapped`: all tokens end to end, cut every max_length
};

/// TRL's packing (trl 1.16, pack_dataset): batches of 1,000 rows, no pack crosses a batch.
/// Error(kUsage) when max_length is 0.
std::vector<Pack> pack_segments(std::span<const uint32_t> lengths, uint32_t max_length,
                                PackStrategy strategy);

}  // namespace galley::text
