// Where NCCL may be, best first: never a second copy beside the one that a framework has loaded.
//
// Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rueda::nccl {

struct Candidate {
  std::string path;
  std::string origin;           // for people: "already loaded by this process"
  bool must_be_loaded = false;  // only if the process has it already
};

// maps: the text of /proc/self/maps. named: RUEDA_NCCL_LIBRARY, or "". own_folder: of librueda.so,
// which lies in site-packages/rueda/lib when pip has installed it. Order: the named one alone; else
// what is loaded already; else what pip has installed beside rueda; else the system's.
std::vector<Candidate> candidates(std::string_view maps, const std::string& named,
                                  const std::string& own_folder);

}  // namespace rueda::nccl
