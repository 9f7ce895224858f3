// The commands of `rueda`, as its help and its manual page list them.
#pragma once

namespace rueda::tools {

struct Command {
  const char* name;
  const char* arguments;
  const char* help;
};

inline constexpr Command kCommands[] = {
    {"doctor", "", "what was found on this host, and what to do"},
    {"bench", "", "how fast collectives are on it"},
    {"attention", "plan", "what each rank computes and sends in a distributed attention"},
    {"status", "", "what the ranks of a running job do"},
    {"top", "", "the same second by second: which rank is slow, and why"},
    {"drain", "", "asks a running job to end at the same step on all ranks"},
    {"explain", "DIR", "why a job hung or failed, from its flight recorders"},
    {"migrate", "SCRIPT...",
     "what differs for Horovod scripts; converts checkpoints (part of the Python package)"},
    {"demo", "", "trains a small model on two ranks (part of the Python package)"},
    {"new", "FILE", "writes a commented script to start from (part of the Python package)"},
};

}  // namespace rueda::tools
