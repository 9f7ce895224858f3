#include "launcher/job/job_id.h"

#include <sys/random.h>
#include <unistd.h>

#include <cstring>

namespace rueda::launcher {

std::string make_job_id() {
  unsigned char bytes[8] = {};
  const pid_t pid = getpid();
  if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) std::memcpy(bytes, &pid, sizeof(pid));
  std::string text;
  for (const unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace rueda::launcher
