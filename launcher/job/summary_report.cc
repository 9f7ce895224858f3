#include "launcher/job/summary_report.h"

#include <algorithm>
#include <cmath>

#include <spdlog/fmt/fmt.h>

#include "launcher/job/exit_report.h"

namespace rueda::launcher {
namespace {

using Summaries = std::map<Rank, wire::RankSummary>;
constexpr size_t kMostStages = 12;  // ours are eight; more would not fit a screen
constexpr size_t kMostHosts = 8;
constexpr double kNotable = 0.01;  // of the ranks' time

std::string bytes_text(double bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < std::size(units); ++unit) bytes /= 1000;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, units[unit]);
}

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

// Over the ranks.
struct Spread {
  double sum = 0;
  double least = 0;
  double most = 0;
  Rank least_rank = 0;
  Rank most_rank = 0;
  int ranks = 0;

  void add(Rank rank, double value) {
    if (ranks == 0 || value < least) {
      least = value;
      least_rank = rank;
    }
    if (ranks == 0 || value > most) {
      most = value;
      most_rank = rank;
    }
    sum += value;
    ++ranks;
  }
  double mean() const { return ranks == 0 ? 0 : sum / ranks; }
};

template <typename Value>
Spread spread(const Summaries& summaries, Value value) {
  Spread result;
  for (const auto& [rank, summary] : summaries) result.add(rank, value(summary));
  return result;
}

void add_stages(const Summaries& summaries, double seconds, std::vector<std::string>* lines) {
  lines->push_back(fmt::format("  {:<15} {:>10} {:>6} {:>9} {:>11}   {:<18} {}", "stage", "seconds",
                               "share", "times", "each", "least", "most"));
  const auto& names = summaries.begin()->second.stages;
  for (size_t i = 0; i < std::min(names.size(), kMostStages); ++i) {
    uint64_t count = 0;
    Spread time;
    for (const auto& [rank, summary] : summaries) {
      if (i >= summary.stages.size()) continue;
      time.add(rank, summary.stages[i].seconds);
      count += summary.stages[i].count;
    }
    if (count == 0) {
      lines->push_back(fmt::format("  {:<15} {:>10}", names[i].name, "-"));
      continue;
    }
    lines->push_back(fmt::format("  {:<15} {:>10.3f} {:>4.0f} % {:>9} {:>8.3f} ms   {:<18} {}",
                                 names[i].name, time.mean(), percent(time.mean(), seconds),
                                 count / summaries.size(),
                                 1e3 * time.sum / static_cast<double>(count),
                                 fmt::format("{:.3f} (rank {})", time.least, time.least_rank),
                                 fmt::format("{:.3f} (rank {})", time.most, time.most_rank)));
  }
}

std::string communication(const Summaries& summaries) {
  const Spread busy = spread(summaries, [](const auto& s) { return s.busy_seconds; });
  const Spread hidden = spread(summaries, [](const auto& s) { return s.overlapped_seconds; });
  const Spread bytes = spread(summaries, [](const auto& s) { return double(s.bytes); });
  const Spread batches = spread(summaries, [](const auto& s) { return double(s.batches); });
  const Spread planned = spread(summaries, [](const auto& s) { return double(s.planned_batches); });
  bool marked = false;
  for (const auto& [rank, summary] : summaries) {
    for (const wire::StageSum& stage : summary.stages)
      marked |= stage.name == "backward" && stage.count > 0;
  }
  const std::string overlap =
      marked ? fmt::format("{:.0f} % of it while backward ran", percent(hidden.mean(), busy.mean()))
             : std::string(
                   "backward was not marked (DistributedOptimizer does on more than one rank)");
  return fmt::format(
      "  communication   {:.3f} s under way, {}; {} in {:.0f} batches ({:.0f} of the step plan), "
      "{}/s while under way",
      busy.mean(), overlap, bytes_text(bytes.mean()), batches.mean(), planned.mean(),
      bytes_text(busy.mean() > 0 ? bytes.mean() / busy.mean() : 0));
}

// The longest that any rank reports counts: where ranks negotiate, rank 0 alone sees who is late.
std::string slowest(const Summaries& summaries, double seconds) {
  Rank slow = 0;
  double most = 0;
  for (const auto& [rank, summary] : summaries) {
    for (const wire::Waited& waited : summary.waited) {
      if (!std::isfinite(waited.seconds) || waited.seconds <= most) continue;
      most = waited.seconds;
      slow = waited.rank;
    }
  }
  if (most < kNotable * seconds || most == 0)
    return "  slowest rank    none: no rank was waited for in more than 1 % of the time";
  return fmt::format(
      "  slowest rank    rank {}: others slept {:.3f} s until it came, {:.0f} % of the time", slow,
      most, percent(most, seconds));
}

// Of each rank and of each host; nothing where nothing is known.
void add_memory(const Summaries& summaries, const std::vector<RankEnd>& ends,
                std::vector<std::string>* lines) {
  Spread resident, heap;
  struct Host {
    std::string name;
    int ranks = 0;
    double resident = 0;
    double heap = 0;
  };
  std::map<int, Host> hosts;
  for (const auto& [rank, summary] : summaries) {
    if (summary.resident_peak == 0) continue;
    resident.add(rank, double(summary.resident_peak));
    heap.add(rank, double(summary.heap_peak));
    Host& host = hosts[summary.host];
    host.name = summary.host_name;
    ++host.ranks;
    host.resident += double(summary.resident_peak);
    host.heap += double(summary.heap_peak);
  }
  for (const RankEnd& end : ends) {
    if (summaries.count(end.rank) == 0 && end.resident_peak > 0)
      resident.add(end.rank, double(end.resident_peak));
  }
  if (resident.ranks == 0) return;
  const auto range = [](const Spread& of) {
    return of.ranks == 1 ? fmt::format("{} (rank {})", bytes_text(of.most), of.most_rank)
                         : fmt::format("{} (rank {}) to {} (rank {})", bytes_text(of.least),
                                       of.least_rank, bytes_text(of.most), of.most_rank);
  };
  std::string line = "  memory          resident, at most: " + range(resident);
  if (heap.most > 0) line += "; of the shared heap: " + range(heap);
  lines->push_back(line);
  if (hosts.size() < 2 && resident.ranks < 2) return;
  size_t shown = 0;
  for (const auto& [number, host] : hosts) {
    if (++shown > kMostHosts) {
      lines->push_back(fmt::format("  ... and {} more hosts", hosts.size() - kMostHosts));
      break;
    }
    lines->push_back(fmt::format(
        "  {:<15} {} rank{}: {} together, where shared memory counts for each that uses it; {} of "
        "their shared heaps",
        host.name, host.ranks, host.ranks == 1 ? "" : "s", bytes_text(host.resident),
        bytes_text(host.heap)));
  }
}

}  // namespace

std::vector<std::string> summary_report(const Summaries& summaries, int ranks,
                                        const std::vector<RankEnd>& ends) {
  std::vector<Rank> silent;
  for (Rank rank = 0; rank < ranks; ++rank) {
    if (summaries.count(rank) == 0) silent.push_back(rank);
  }
  if (summaries.empty()) {
    std::vector<std::string> lines = {
        "no summary: no rank has sent one (they do when they call shutdown, or at exit)"};
    add_memory(summaries, ends, &lines);
    return lines;
  }
  const double seconds = spread(summaries, [](const auto& s) { return s.seconds; }).mean();
  std::vector<std::string> lines;
  lines.push_back(fmt::format("summary of {} rank{}, {:.2f} s from init to shutdown",
                              summaries.size(), summaries.size() == 1 ? "" : "s", seconds));
  add_stages(summaries, seconds, &lines);
  lines.push_back(
      "  (seconds and times: of one rank, the mean; batches overlap, so stages do too)");
  lines.push_back(communication(summaries));
  if (ranks > 1) lines.push_back(slowest(summaries, seconds));
  add_memory(summaries, ends, &lines);
  if (!silent.empty())
    lines.push_back("  nothing was heard of " + name_ranks(silent) + ", which ended otherwise");
  return lines;
}

}  // namespace rueda::launcher
