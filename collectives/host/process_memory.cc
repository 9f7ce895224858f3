#include "collectives/host/process_memory.h"

#include <string>

namespace rueda::host {

uint64_t resident_peak(const ReadFile& read) {
  const std::string text = read("/proc/self/status").value_or("");
  const std::string name = "VmHWM:";
  const size_t at = text.find(name);
  if (at == std::string::npos) return 0;
  return first_number(text.substr(at + name.size())).value_or(0) << 10;
}

}  // namespace rueda::host
