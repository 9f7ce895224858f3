// Which backend serves which collective with these settings, and why: the second table of
// `ruedarun --print-config`. Pure.
#pragma once

#include <string>
#include <vector>

namespace rueda::launcher {

struct Backend {
  std::string collectives;  // "allreduce, allgather, ..."
  std::string where;        // "inside a host"
  std::string name;         // "shared memory"
  std::string reason;       // "RUEDA_TRANSPORT=auto"
};

// transport: RUEDA_TRANSPORT's value, checked already.
std::vector<Backend> backends(const std::string& transport);
std::string backends_text(const std::string& transport);

}  // namespace rueda::launcher
