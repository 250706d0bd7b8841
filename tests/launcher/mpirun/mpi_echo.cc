// mpi_echo: rank 0 sends every other rank messages of many sizes and gets each back; exit 1 when a
// byte is wrong or one stays away. `--denied` first demands that process_vm_readv is refused here.
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/error.h"
#include "launcher/mpi_world.h"
#include "launcher/process.h"

namespace {

constexpr double kSeconds = 20;
const std::vector<size_t> kSizes = {1, 1000, 5000, 100'000, 4 << 20};

std::string pattern(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 31 + i / 257);
  return bytes;
}

std::string receive(galley::launcher::MpiWorld& world) {
  const double end = galley::launcher::monotonic_now() + kSeconds;
  while (galley::launcher::monotonic_now() < end) {
    if (auto message = world.try_receive()) return message->bytes;
    world.flush();
    usleep(200);
  }
  std::fprintf(stderr, "rank %d: no message in %.0f s\n", world.rank(), kSeconds);
  _exit(1);
}

bool denied() {
  char from[8] = {}, to[8] = {};
  const iovec local = {to, sizeof to}, remote = {from, sizeof from};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) < 0 && errno == EPERM;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--denied" && !denied()) {
    std::fprintf(stderr, "process_vm_readv is not refused\n");
    return 1;
  }
  const auto world = galley::launcher::MpiWorld::open();
  world->started();
  int code = 0;
  for (const size_t size : kSizes) {
    for (int other = 1; other < world->size(); ++other) {
      if (world->rank() == 0) {
        world->send(other, pattern(size));
        if (receive(*world) != pattern(size)) code = 1;
      } else if (world->rank() == other) {
        const std::string bytes = receive(*world);
        if (bytes != pattern(size)) code = 1;
        world->send(0, bytes);
      }
    }
  }
  while (!world->flush()) usleep(200);
  if (code != 0) std::fprintf(stderr, "rank %d: wrong bytes\n", world->rank());
  world->finalize();
  return code;
}
