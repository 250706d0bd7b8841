#include "engine/text/packing.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <utility>

#include "engine/core/error.h"

namespace galley::text {
namespace {

constexpr size_t kBatchRows = 1000;  // of TRL's map over the data set

// Open packs by their free room; of equal ones the first that reached that room is taken first.
class Rooms {
 public:
  explicit Rooms(uint64_t capacity) : capacity_(capacity) {}

  /// Number of the pack that takes `length`: the one with the least sufficient room, or a new one.
  size_t take(uint64_t length) {
    size_t pack = num_packs_;
    uint64_t room = std::max(capacity_, length);
    if (const auto found = by_room_.lower_bound(length); found != by_room_.end()) {
      room = found->first;
      pack = found->second.front();
      found->second.pop_front();
      if (found->second.empty()) by_room_.erase(found);
    } else {
      ++num_packs_;
    }
    if (room > length) by_room_[room - length].push_back(pack);
    return pack;
  }
  size_t num_packs() const { return num_packs_; }

 private:
  uint64_t capacity_;
  size_t num_packs_ = 0;
  std::map<uint64_t, std::deque<size_t>> by_room_;
};

void add_best_fit(std::vector<PackSegment> parts, uint32_t max_length, std::vector<Pack>* packs) {
  std::stable_sort(parts.begin(), parts.end(), [](const PackSegment& a, const PackSegment& b) {
    return a.end - a.begin > b.end - b.begin;
  });
  Rooms rooms(max_length);
  const size_t first = packs->size();
  for (const PackSegment& part : parts) {
    const size_t pack = first + rooms.take(part.end - part.begin);
    if (pack == packs->size()) packs->emplace_back();
    (*packs)[pack].push_back(part);
  }
}

void add_wrapped(std::span<const uint32_t> lengths, uint32_t first_row, uint32_t max_length,
                 std::vector<Pack>* packs) {
  Pack pack;
  uint32_t room = max_length;
  for (uint32_t i = 0; i < lengths.size(); ++i) {
    for (uint32_t begin = 0; begin < lengths[i];) {
      const uint32_t size = std::min(room, lengths[i] - begin);
      pack.push_back({first_row + i, begin, begin + size});
      begin += size;
      room -= size;
      if (room == 0) {
        packs->push_back(std::move(pack));
        pack.clear();
        room = max_length;
      }
    }
  }
  if (!pack.empty()) packs->push_back(std::move(pack));
}

}  // namespace

RowPacker::RowPacker(size_t max_rows) {
  packs_.reserve(max_rows);
  order_.reserve(max_rows);
  pack_of_.reserve(max_rows);
  rows_.reserve(max_rows);
}

/// As Rooms::take() chooses, without its map.
RowPacker::OpenPack& RowPacker::fullest_with_room(uint64_t length, uint64_t token_budget) {
  OpenPack* best = nullptr;
  for (OpenPack& open : packs_) {
    if (open.room < length) continue;
    if (best == nullptr || open.room < best->room ||
        (open.room == best->room && open.turn < best->turn)) {
      best = &open;
    }
  }
  if (best != nullptr) return *best;
  packs_.push_back({.room = std::max(token_budget, length)});
  return packs_.back();
}

void RowPacker::pack(std::span<const uint32_t> lengths, uint64_t token_budget) {
  packs_.clear();
  order_.resize(lengths.size());
  std::iota(order_.begin(), order_.end(), 0u);
  std::sort(order_.begin(), order_.end(), [lengths](uint32_t a, uint32_t b) {
    return lengths[a] != lengths[b] ? lengths[a] > lengths[b] : a < b;
  });
  pack_of_.resize(lengths.size());
  for (const uint32_t row : order_) {
    if (lengths[row] == 0) break;  // they come last
    OpenPack& open = fullest_with_room(lengths[row], token_budget);
    open.room -= lengths[row];
    open.turn = ++turn_;
    ++open.end;  // counts its rows for now
    pack_of_[row] = static_cast<uint32_t>(&open - packs_.data());
  }
  size_t begin = 0;
  for (OpenPack& open : packs_) begin += std::exchange(open.end, begin);
  rows_.resize(begin);
  for (uint32_t row = 0; row < lengths.size(); ++row) {
    if (lengths[row] > 0) rows_[packs_[pack_of_[row]].end++] = row;
  }
}

std::span<const uint32_t> RowPacker::rows(size_t pack) const {
  const size_t begin = pack == 0 ? 0 : packs_[pack - 1].end;
  return std::span(rows_).subspan(begin, packs_[pack].end - begin);
}

std::vector<std::vector<uint32_t>> pack_rows(std::span<const uint32_t> lengths,
                                             uint64_t token_budget) {
  RowPacker packer;
  packer.pack(lengths, token_budget);
  std::vector<std::vector<uint32_t>> packs;
  for (size_t i = 0; i < packer.num_packs(); ++i) {
    const std::span<const uint32_t> rows = packer.rows(i);
    packs.emplace_back(rows.begin(), rows.end());
  }
  return packs;
}

std::vector<Pack> pack_segments(std::span<const uint32_t> lengths, uint32_t max_length,
                                PackStrategy strategy) {
  if (max_length == 0) throw Error(Reason::kUsage, "packing needs a length of at least 1");
  std::vector<Pack> packs;
  for (size_t base = 0; base < lengths.size(); base += kBatchRows) {
    const auto batch = lengths.subspan(base, std::min(kBatchRows, lengths.size() - base));
    const auto first_row = static_cast<uint32_t>(base);
    if (strategy == PackStrategy::kWrapped) {
      add_wrapped(batch, first_row, max_length, &packs);
      continue;
    }
    std::vector<PackSegment> parts;
    for (uint32_t i = 0; i < batch.size(); ++i) {
      const uint32_t kept =
          strategy == PackStrategy::kBestFit ? std::min(batch[i], max_length) : batch[i];
      for (uint32_t begin = 0; begin < kept; begin += std::min(max_length, kept - begin)) {
        parts.push_back({first_row + i, begin, begin + std::min(max_length, kept - begin)});
      }
    }
    add_best_fit(std::move(parts), max_length, &packs);
  }
  return packs;
}

}  // namespace galley::text
