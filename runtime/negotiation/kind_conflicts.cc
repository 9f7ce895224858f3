#include "runtime/negotiation/kind_conflicts.h"

#include <algorithm>

namespace rueda::negotiation {
namespace {

std::string kind_in(const std::string& wire_name) {
  return wire_name.substr(0, wire_name.find('.'));
}
std::string name_in(const std::string& wire_name) {
  return wire_name.substr(wire_name.find('.') + 1);
}

}  // namespace

void KindConflicts::on_waiting(const std::string& wire_name, Time now) {
  Name& name = names_[name_in(wire_name)];
  if (std::find(name.wire_names.begin(), name.wire_names.end(), wire_name) ==
      name.wire_names.end()) {
    name.wire_names.push_back(wire_name);
  }
  name.changed = now;
  name.checked = false;
}

void KindConflicts::on_decided(const std::string& wire_name) {
  const auto it = names_.find(name_in(wire_name));
  if (it == names_.end()) return;
  auto& known = it->second.wire_names;
  known.erase(std::remove(known.begin(), known.end(), wire_name), known.end());
  if (known.empty()) names_.erase(it);
}

std::vector<KindConflicts::Conflict> KindConflicts::due(const ReadinessTable& table,
                                                        const Members& members, Time now) {
  const auto size = static_cast<Rank>(members.size());
  std::vector<Conflict> conflicts;
  for (auto& [bare, name] : names_) {
    if (name.wire_names.size() < 2 || name.checked || name.changed + kPatience > now) continue;
    name.checked = true;
    Conflict conflict{name.wire_names, {}};
    std::vector<int> kinds_of_rank(static_cast<size_t>(size), 0);
    for (const std::string& wire_name : name.wire_names) {
      std::vector<Rank>& ranks = conflict.senders.emplace_back();
      for (Rank rank = 0; rank < size; ++rank) {
        if (!table.submitted(rank, wire_name)) continue;
        ranks.push_back(rank);
        ++kinds_of_rank[static_cast<size_t>(rank)];
      }
    }
    bool one_each = true;
    for (Rank rank = 0; rank < size; ++rank) {
      const int kinds = kinds_of_rank[static_cast<size_t>(rank)];
      one_each &= kinds == 1 || (kinds == 0 && table.has_joined(rank));
    }
    if (one_each) conflicts.push_back(std::move(conflict));
  }
  return conflicts;
}

bool KindConflicts::stands(const Conflict& conflict) const {
  const auto it = names_.find(name_in(conflict.wire_names.front()));
  return it != names_.end() && it->second.checked && it->second.wire_names == conflict.wire_names;
}

Status KindConflicts::status_of(const Conflict& conflict, const Members& members,
                                const std::vector<std::vector<std::string>>& sites) {
  std::string sent;
  for (size_t i = 0; i < conflict.wire_names.size(); ++i) {
    std::vector<Rank> numbers;
    std::vector<std::string> called;
    for (const Rank place : conflict.senders[i]) {
      numbers.push_back(members.ranks[static_cast<size_t>(place)]);
      called.push_back(sites.empty() ? "" : sites[i][static_cast<size_t>(place)]);
    }
    sent += (sent.empty() ? "" : "; ") + name_ranks(numbers) + " sent " +
            kind_in(conflict.wire_names[i]) + name_sites(numbers, called);
  }
  return failed_precondition("Mismatched operations: '" + name_in(conflict.wire_names.front()) +
                             "': " + sent + "; make all ranks submit the same");
}

std::optional<Time> KindConflicts::next_deadline() const {
  std::optional<Time> earliest;
  for (const auto& [bare, name] : names_) {
    if (name.wire_names.size() < 2 || name.checked) continue;
    if (!earliest || name.changed + kPatience < *earliest) earliest = name.changed + kPatience;
  }
  return earliest;
}

}  // namespace rueda::negotiation
