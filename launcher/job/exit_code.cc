#include "launcher/job/exit_code.h"

#include <cstdio>

namespace rueda::launcher {

int fail(int code, const std::string& text) {
  std::fprintf(stderr, "ruedarun: %s\n", text.c_str());
  return code;
}

}  // namespace rueda::launcher
