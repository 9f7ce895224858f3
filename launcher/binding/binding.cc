#include "launcher/binding/binding.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "collectives/base/number_text.h"

namespace rueda::launcher {
namespace {

constexpr int kMostCpus = 1 << 16;

// Hardware threads, grouped: what a rank gets is a row of them.
using Group = std::vector<HardwareThread>;

template <typename Key>
std::vector<Group> group_by(const Group& threads, Key key) {
  std::vector<Group> groups;
  for (const HardwareThread& thread : threads) {
    if (groups.empty() || key(groups.back().front()) != key(thread)) groups.emplace_back();
    groups.back().push_back(thread);
  }
  return groups;
}

std::vector<Group> by_node(const Group& threads) {
  return group_by(threads, [](const HardwareThread& thread) { return thread.node; });
}
std::vector<Group> by_core(const Group& threads) {
  return group_by(threads, [](const HardwareThread& thread) { return thread.core; });
}

// The part of `groups` that number `index` of `count` gets: at least one if there are any.
Group share(const std::vector<Group>& groups, int index, int count) {
  const auto total = static_cast<int64_t>(groups.size());
  const int64_t begin = total * index / count;
  const int64_t end = std::max(begin + 1, total * (index + 1) / count);
  Group out;
  for (int64_t i = begin; i < end; ++i) {
    const Group& group = groups[static_cast<size_t>(i)];
    out.insert(out.end(), group.begin(), group.end());
  }
  return out;
}

std::vector<int> cpus_of(const Group& threads) {
  std::vector<int> cpus;
  for (const HardwareThread& thread : threads) cpus.push_back(thread.cpu);
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

// Which hardware threads each local rank gets; `bind` is core or numa.
Result<std::vector<Group>> spread(Bind::Kind kind, const Topology& topology, int local_size) {
  const std::vector<Group> nodes = by_node(topology.threads);
  const auto node_count = static_cast<int>(nodes.size());
  std::vector<Group> out;
  for (int rank = 0; rank < local_size; ++rank) {
    Group home = share(nodes, rank, local_size);
    if (kind == Bind::Kind::kCore && local_size >= node_count) {
      // Ranks [first, last) live on this node.
      const int64_t node = int64_t{node_count} * rank / local_size;
      const auto first = static_cast<int>((node * local_size + node_count - 1) / node_count);
      const auto last = static_cast<int>(((node + 1) * local_size + node_count - 1) / node_count);
      const std::vector<Group> cores = by_core(home);
      if (static_cast<int>(cores.size()) < last - first) {
        return invalid_argument(
            "--bind core: " + counted(by_core(topology.threads).size(), "core") + " on " +
            counted(nodes.size(), "NUMA node") + " for " + std::to_string(local_size) +
            " ranks; --bind none lets ranks share cores");
      }
      home = share(cores, rank - first, last - first);
    }
    out.push_back(std::move(home));
  }
  return out;
}

Result<std::vector<Group>> listed(const Bind& bind, const Topology& topology, int local_size) {
  if (static_cast<int>(bind.lists.size()) < local_size) {
    return invalid_argument("--bind: " + counted(bind.lists.size(), "list") + " of cpus for " +
                            std::to_string(local_size) + " ranks on a host; separate them by ':'");
  }
  std::vector<Group> out;
  for (int rank = 0; rank < local_size; ++rank) {
    Group group;
    for (const int cpu : bind.lists[static_cast<size_t>(rank)]) {
      const auto found = std::find_if(topology.threads.begin(), topology.threads.end(),
                                      [&](const auto& thread) { return thread.cpu == cpu; });
      if (found == topology.threads.end()) {
        return invalid_argument(
            "--bind: cpu " + std::to_string(cpu) +
            " is none that we may use: " + ranges_text(cpus_of(topology.threads)));
      }
      group.push_back(*found);
    }
    std::sort(group.begin(), group.end(), [](const auto& a, const auto& b) {
      return std::pair(a.node, a.core) < std::pair(b.node, b.core);
    });
    out.push_back(std::move(group));
  }
  return out;
}

std::string in_words(const RankBinding& binding, const Group& threads) {
  std::string text = "any cpu";
  if (!binding.cpus.empty()) {
    std::vector<int> nodes;
    for (const Group& node : by_node(threads)) nodes.push_back(node.front().node);
    text = (binding.cpus.size() == 1 ? "cpu " : "cpus ") + ranges_text(binding.cpus) +
           " (NUMA node" + (nodes.size() == 1 ? " " : "s ") + ranges_text(nodes) + ")";
  }
  return text + ", " + counted(static_cast<size_t>(binding.threads), "thread");
}

// "0-3,8"
Result<std::vector<int>> parse_cpus(const std::string& text, const std::string& whole) {
  std::set<int> cpus;
  const auto wrong = [&] {
    return invalid_argument("--bind '" + whole +
                            "': expected none, core, numa, or lists of cpus as in 0-3:4-7");
  };
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const char* at = text.data() + begin;
    const char* const stop = text.data() + end;
    begin = end + 1;
    int first = -1, last = -1;
    const auto [after, error] = std::from_chars(at, stop, first);
    if (error != std::errc()) return wrong();
    last = first;
    if (after != stop) {
      if (*after != '-') return wrong();
      const auto [behind, bad] = std::from_chars(after + 1, stop, last);
      if (bad != std::errc() || behind != stop) return wrong();
    }
    if (first < 0 || last < first || last >= kMostCpus) return wrong();
    for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
  }
  return std::vector<int>(cpus.begin(), cpus.end());
}

}  // namespace

Result<Bind> parse_bind(const std::string& text) {
  Bind bind;
  if (text.empty() || text == "none") return bind;
  if (text == "core" || text == "numa") {
    bind.kind = text == "core" ? Bind::Kind::kCore : Bind::Kind::kNuma;
    return bind;
  }
  bind.kind = Bind::Kind::kList;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    RUEDA_ASSIGN_OR_RETURN(std::vector<int> cpus,
                           parse_cpus(text.substr(begin, end - begin), text));
    bind.lists.push_back(std::move(cpus));
    begin = end + 1;
  }
  return bind;
}

Result<std::vector<RankBinding>> plan_binding(const Bind& bind, const Topology& topology,
                                              int local_size, double core_limit) {
  const bool none = bind.kind == Bind::Kind::kNone;
  std::vector<Group> groups(static_cast<size_t>(local_size), topology.threads);
  if (bind.kind == Bind::Kind::kList) {
    RUEDA_ASSIGN_OR_RETURN(groups, listed(bind, topology, local_size));
  } else if (!none) {
    RUEDA_ASSIGN_OR_RETURN(groups, spread(bind.kind, topology, local_size));
  }
  std::vector<RankBinding> out;
  for (const Group& mine : groups) {
    RankBinding binding;
    if (!none) binding.cpus = cpus_of(mine);
    // Ranks with the same cores share them; who shares only some counts as another.
    const std::vector<int> cpus = cpus_of(mine);
    const auto sharing = std::count_if(groups.begin(), groups.end(),
                                       [&](const Group& other) { return cpus_of(other) == cpus; });
    double cores = static_cast<double>(by_core(mine).size()) / static_cast<double>(sharing);
    if (core_limit > 0) cores = std::min(cores, core_limit / local_size);
    binding.threads = std::max(1, static_cast<int>(cores));
    binding.text = in_words(binding, mine);
    out.push_back(std::move(binding));
  }
  return out;
}

}  // namespace rueda::launcher
