// Bytes of a token file, shared by its writer and its reader; described in docs/formats.md.
#pragma once

#include <cstdint>

namespace galley::text::token_format {

inline constexpr char kMagic[8] = {'G', 'A', 'L', 'L', 'E', 'Y', 'T', 'K'};
inline constexpr uint32_t kVersion = 1;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t zero;
};
static_assert(sizeof(Header) == 16);

struct TableEntry {
  uint64_t offset;  // of the row's ids; its mask follows them
  uint64_t line;
  uint32_t length;
  uint32_t num_targets;
  uint32_t input;
  uint32_t flags;
};
static_assert(sizeof(TableEntry) == 32);
inline constexpr uint32_t kFlagCut = 1;

struct Footer {
  uint64_t num_rows;
  uint64_t num_tokens;
  uint64_t num_targets;
  uint64_t table_offset;
  uint64_t info_offset;
  uint64_t info_bytes;
  uint64_t file_bytes;
  char content_hash[32];  // hexadecimal XXH3-128 of all bytes before the footer
  uint64_t footer_hash;   // XXH3-64 of the footer before this field
  char magic[8];
};
static_assert(sizeof(Footer) == 104);

/// Bytes of a row: ids, mask, and zeros up to a multiple of 8.
inline uint64_t row_bytes(uint64_t length) { return (length * 5 + 7) / 8 * 8; }

}  // namespace galley::text::token_format
