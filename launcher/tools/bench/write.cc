#include "launcher/tools/bench/write.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace rueda::bench {

Status write_text(const std::string& path, const std::string& text) {
  std::FILE* file = path == "-" ? stdout : std::fopen(path.c_str(), "we");
  if (file == nullptr) return unavailable("cannot write " + path + ": " + std::strerror(errno));
  const bool written = std::fputs(text.c_str(), file) >= 0;
  const bool closed = file == stdout ? std::fflush(file) == 0 : std::fclose(file) == 0;
  return written && closed ? Status{} : unavailable("cannot write " + path);
}

}  // namespace rueda::bench
