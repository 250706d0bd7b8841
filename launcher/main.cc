// The program: `galley worker` goes straight to its work, everything else through the command line.
#include <sys/stat.h>

#include <cstring>
#include <iostream>

#include "engine/core/env.h"
#include "launcher/command_line.h"
#include "launcher/run.h"

int main(int argc, char** argv) {
  // Run directories hold prompts and adapters: nobody else may read them unless the user opens
  // them.
  ::umask(077);
  std::ios::sync_with_stdio(false);
  if (argc > 1 && std::strcmp(argv[1], "worker") == 0)
    return galley::launcher::worker_main(argc, argv);
  return galley::launcher::command_line_main(argc, argv, galley::Environment::current(),
                                             {std::cin, std::cout, std::cerr});
}
