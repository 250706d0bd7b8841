#include "engine/text/tok_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::text::internal {
namespace {

struct CodeFree {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDataFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct MatchContextFree {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
using CodePointer = std::unique_ptr<pcre2_code, CodeFree>;

CodePointer compile(const std::string& pattern, const std::string& where) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  CodePointer code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                 &error, &offset, nullptr));
  if (!code) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(error, message, sizeof(message));
    const bool unknown_property = error == PCRE2_ERROR_UNKNOWN_UNICODE_PROPERTY;
    throw Error(unknown_property ? Reason::kUnsupported : Reason::kBadTokenizer,
                cat(where, ": the pattern is not usable: ", reinterpret_cast<char*>(message),
                    " (near \"", pattern.substr(offset > 20 ? offset - 20 : 0, 40), "\")"));
  }
  // Without JIT on this machine the interpreter does the same work.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

}  // namespace

struct Regex::Code {
  CodePointer plain;
  CodePointer extended;  // null when it would be the same as `plain`
  uint32_t lead_bytes = 0;
  std::unique_ptr<pcre2_match_context, MatchContextFree> context;
  std::string where;

  const pcre2_code* choose(std::string_view text) const {
    if (!extended) return plain.get();
    uint32_t seen = 0;
    for (const char byte : text) {
      const unsigned value = static_cast<unsigned char>(byte);
      if (value >= 0xE0) seen |= value >= 0xF0 ? 0x10000u : 1u << (value - 0xE0);
    }
    return (seen & (lead_bytes | 0x10000u)) != 0 ? extended.get() : plain.get();
  }
};

Regex::Regex(std::string_view pattern, const std::string& where) : code_(new Code) {
  const RegexTranslation translation = translate_regex(pattern, where);
  code_->plain = compile(translation.plain, where);
  if (translation.extended != translation.plain) {
    code_->extended = compile(translation.extended, where);
  }
  code_->lead_bytes = translation.lead_bytes;
  code_->where = where;
  code_->context.reset(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(code_->context.get(), 50'000'000);
  pcre2_set_depth_limit(code_->context.get(), 1'000'000);
  pcre2_set_heap_limit(code_->context.get(), 1 << 20);  // KiB
}

Regex::~Regex() = default;
Regex::Regex(Regex&& other) noexcept = default;
Regex& Regex::operator=(Regex&& other) noexcept = default;

void Regex::find_all(std::string_view text, std::vector<ByteRange>* out) const {
  const pcre2_code* code = code_->choose(text);
  const std::unique_ptr<pcre2_match_data, MatchDataFree> data(
      pcre2_match_data_create_from_pattern(code, nullptr));
  const PCRE2_SIZE* found = pcre2_get_ovector_pointer(data.get());
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  uint32_t options = PCRE2_NO_UTF_CHECK;
  constexpr size_t kNone = static_cast<size_t>(-1);
  size_t last_end = kNone;
  for (size_t start = 0; start <= text.size();) {
    int result =
        pcre2_match(code, subject, text.size(), start, options, data.get(), code_->context.get());
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
      // The machine code's stack is small; the interpreter uses the heap.
      options |= PCRE2_NO_JIT;
      result =
          pcre2_match(code, subject, text.size(), start, options, data.get(), code_->context.get());
    }
    if (result == PCRE2_ERROR_NOMATCH) return;
    if (result < 0) {
      throw Error(
          Reason::kBadData,
          cat(code_->where, ": the splitting pattern gave up on a text of ", text.size(),
              " bytes (PCRE2 error ", result, "); shorten the text or break its longest run"));
    }
    const size_t begin = found[0];
    const size_t end = found[1];
    if (begin == end && last_end == end) {
      if (start >= text.size()) return;
      next_utf8(text, &start);
      continue;
    }
    out->push_back({begin, end});
    start = end;
    last_end = end;
  }
}

}  // namespace galley::text::internal
