// Encodes files on request and says how long it took: the side of galley in
// scripts/compare_tokenizers, which lets it take turns with the peer.
//
// bench_tokenizer TOKENIZER, then lines "FILE THREADS [IDS]" on standard input. FILE holds texts
// with a zero byte behind each; IDS gets the ids of all, as int32 with -1 behind each text. Prints
// a JSON line for the tokenizer and one for each request.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/json.h"
#include "engine/core/strings.h"
#include "engine/text/token_file.h"
#include "engine/text/tokenizer.h"

namespace galley::bench {
namespace {

struct Clocks {
  double wall = seconds_of(CLOCK_MONOTONIC);
  double processor = seconds_of(CLOCK_PROCESS_CPUTIME_ID);

  Json since() const {
    const Clocks now;
    return Json::object()
        .set("seconds", now.wall - wall)
        .set("processor_seconds", now.processor - processor);
  }
};

void print(const Json& json) {
  std::printf("%s\n", json.dump().c_str());
  std::fflush(stdout);
}

using Ids = std::vector<std::vector<int32_t>>;

Ids encode(const text::Tokenizer& tokenizer, const std::vector<std::string_view>& texts,
           size_t num_threads) {
  Ids ids(texts.size());
  std::atomic<size_t> next{0};
  const auto run = [&] {
    for (size_t i = next++; i < texts.size(); i = next++) {
      ids[i] = tokenizer.encode(texts[i]).ids;
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < num_threads; ++i) threads.emplace_back(run);
  run();
  for (std::thread& thread : threads) thread.join();
  return ids;
}

void write_ids(const std::string& path, const Ids& ids) {
  AtomicFile file(path);
  for (const std::vector<int32_t>& some : ids) {
    constexpr int32_t kEnd = -1;
    file.write(some.data(), some.size() * sizeof(int32_t));
    file.write(&kEnd, sizeof kEnd);
  }
  file.commit();
}

void serve(const text::Tokenizer& tokenizer, const std::string& request) {
  const std::vector<std::string> words = split(request, ' ');
  const auto threads = words.size() < 2 ? std::nullopt : parse_int(words[1]);
  if (!threads || *threads < 1 || words.size() > 3) {
    throw Error(Reason::kUsage, cat("\"", request, "\" is no FILE THREADS [IDS]"));
  }
  const std::string content = read_file(words[0]);
  std::vector<std::string_view> texts;
  for (size_t at = 0; at < content.size();) {
    const size_t end = std::min(content.find('\0', at), content.size());
    texts.push_back(std::string_view(content).substr(at, end - at));
    at = end + 1;
  }
  const Clocks begin;
  const Ids ids = encode(tokenizer, texts, static_cast<size_t>(*threads));
  Json answer = begin.since();
  size_t num_ids = 0;
  for (const auto& some : ids) num_ids += some.size();
  if (words.size() == 3) write_ids(words[2], ids);
  print(answer.set("tokens", static_cast<uint64_t>(num_ids)));
}

/// The whole way of a data set: reading, checking, template, tokens, file.
void prepare(const std::string& folder, const std::string& data, const std::string& threads) {
  const auto count = parse_int(threads);
  if (!count || *count < 0) throw Error(Reason::kUsage, cat("no count of threads: ", threads));
  const auto chat = text::ChatTemplate::load_for_model(folder);
  const text::RowTokenizer rows(text::Tokenizer::load(folder), &chat,
                                text::load_special_tokens(folder), {});
  const std::string output = temporary_beside(data);
  const Clocks begin;
  text::PrepareOptions options;
  options.num_threads = static_cast<size_t>(*count);
  const text::PrepareResult result = text::prepare_tokens({data}, rows, output, options);
  Json answer = begin.since();
  remove_file_if_exists(output);
  result.require_ok();
  print(answer.set("tokens", result.summary.num_tokens).set("bytes", file_bytes(data)));
}

int run(int argc, char** argv) {
  if (argc != 2) throw Error(Reason::kUsage, "bench_tokenizer TOKENIZER < REQUESTS");
  const Clocks begin;
  const text::Tokenizer tokenizer = text::Tokenizer::load(argv[1]);
  print(begin.since());
  for (std::string line; std::getline(std::cin, line);) {
    const std::vector<std::string> words = split(line, ' ');
    if (words.size() == 3 && words[0] == "prepare") {
      prepare(argv[1], words[1], words[2]);
    } else {
      serve(tokenizer, line);
    }
  }
  return 0;
}

}  // namespace
}  // namespace galley::bench

int main(int argc, char** argv) {
  try {
    return galley::bench::run(argc, argv);
  } catch (const galley::Error& error) {
    std::fprintf(stderr, "bench_tokenizer: %s\n", error.what());
    return error.exit_code();
  }
}
