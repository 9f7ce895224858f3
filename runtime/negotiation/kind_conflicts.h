// KindConflicts: finds ranks that use one name for different collectives: rank 0 waits in allreduce
// 'x', rank 1 in broadcast 'x'. To the readiness table these are two tensors, each waiting for the
// other rank for ever.
//
// The same name may rightly be under way in two kinds at once, submitted in different order. So a
// conflict is reported only when every rank has submitted the name in exactly one kind and nothing
// has changed for kPatience. Pure; one thread.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/negotiation/readiness_table.h"

namespace rueda::negotiation {

class KindConflicts {
 public:
  static constexpr std::chrono::milliseconds kPatience{50};

  // A tensor has got one more rank and still waits; or it waits no longer.
  void on_waiting(const std::string& wire_name, Time now);
  void on_decided(const std::string& wire_name);

  struct Conflict {
    std::vector<std::string> wire_names;
    std::vector<std::vector<Rank>> senders;  // of each: places of members
  };
  // Conflicts that have lasted. They stay known until on_decided.
  std::vector<Conflict> due(const ReadinessTable& table, const Members& members, Time now);
  // Nothing has changed since it was due.
  bool stands(const Conflict& conflict) const;
  // The error of it; sites[i][place]: where that member called wire_names[i], empty: not known.
  static Status status_of(const Conflict& conflict, const Members& members,
                          const std::vector<std::vector<std::string>>& sites);
  std::optional<Time> next_deadline() const;

 private:
  struct Name {
    std::vector<std::string> wire_names;  // that wait now
    Time changed;
    bool checked = false;  // since it changed
  };
  std::map<std::string, Name> names_;  // by the part behind the kind
};

}  // namespace rueda::negotiation
