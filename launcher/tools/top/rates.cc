#include "launcher/tools/top/rates.h"

#include <algorithm>
#include <cstdio>

namespace rueda::top {
namespace {

constexpr double kWorthAWord = 0.02;  // of the others' time
constexpr double kApart = 0.1;        // of its time, what a rank waits less than the others
constexpr double kMuch = 0.1;         // of a rank's own time
constexpr double kForeign = 0.3;      // cores

double share(double more, double seconds) {
  return seconds <= 0 ? 0 : std::clamp(more / seconds, 0.0, 1.0);
}

std::string in_percent(double share) {
  char text[16];
  std::snprintf(text, sizeof(text), "%.0f %%", 100 * share);
  return text;
}

// Why ranks of a host lack cores: what others have there.
std::string shortage(const std::string& host, const std::vector<Row>& rows) {
  double all = 0, ranks = 0;
  for (const Row& row : rows) {
    if (row.host != host) continue;
    all = std::max(all, row.host_cores);
    ranks += row.cores;
  }
  const double foreign = all - ranks;
  if (foreign < kForeign) return ": its host has more to do than cores";
  char text[64];
  std::snprintf(text, sizeof(text), ": other processes use %.1f cores there", foreign);
  return text;
}

// Why a rank comes late, by what it does instead. others: cores that the others use, in the mean.
std::string cause(const Row& row, double others, const std::vector<Row>& rows) {
  const double much = std::max(kMuch, row.late / 4);
  if (row.state.starts_with("stopped") || row.state.starts_with("frozen"))
    return "it is " + row.state;
  if (row.data >= much) return "it waits for data for " + in_percent(row.data) + " of its time";
  if (row.delayed >= much) {
    const bool more = row.cores > 2 * others + 0.05;
    return (more ? "it computes longer than the others (" + in_percent(row.cores) +
                       " of a core, they " + in_percent(others) + ") and "
                 : std::string("it ")) +
           "waits for a core for " + in_percent(row.delayed) + " of its time" +
           shortage(row.host, rows);
  }
  if (row.cores < 0.5) {
    // The state is that of one moment: it says something only where it is a reason.
    const bool reason = row.state.starts_with("blocked");
    return "it does not compute (" + in_percent(row.cores) + " of a core)" +
           (reason ? ": " + row.state
                   : ", nor wait for data: it sleeps, or is stopped now and then");
  }
  return "it computes longer than the others (" + in_percent(row.cores) + " of a core)";
}

}  // namespace

void Rates::take(const Sample& sample) {
  before_ = std::exchange(now_, sample);
  std::map<Rank, const RankSample*> earlier;
  for (const RankSample& one : before_.ranks) earlier[one.rank] = &one;
  rows_.clear();
  std::map<std::string, double> on_host;
  for (const RankSample& one : now_.ranks) ++on_host[one.host];
  for (const RankSample& one : now_.ranks) {
    // Those who can see it be late share its memory. (Over negotiated steps only rank 0 sees others
    // be late; it is one.)
    const double others = std::max(1.0, on_host[one.host] - 1);
    Row row;
    row.rank = one.rank;
    row.pid = one.pid;
    row.host = one.host;
    row.state =
        one.life == "running" ? one.state : one.life + (one.state.empty() ? "" : ": " + one.state);
    row.has_joined = one.has_joined;
    row.steps = one.steps;
    row.resident_bytes = one.resident_bytes;
    row.shared_memory_bytes = one.shared_memory_bytes;
    row.stalled = one.stalled;
    if (one.timed_steps > 0) row.step_seconds = one.step_seconds / one.timed_steps;
    const auto known = earlier.find(one.rank);
    std::deque<double>& history = history_[one.rank];
    if (known != earlier.end() && known->second->pid == one.pid && one.now > known->second->now) {
      const RankSample& then = *known->second;
      const double passed = one.now - then.now;
      row.has_rates = one.life == "running";
      const double steps = one.timed_steps - then.timed_steps;
      if (steps > 0) {
        row.step_seconds = std::max(0.0, one.step_seconds - then.step_seconds) / steps;
        history.push_back(row.step_seconds);
      }
      row.late = share(one.late_seconds - then.late_seconds, passed * others);
      row.waiting = share(one.waiting_seconds - then.waiting_seconds, passed);
      row.data = share(one.data_wait_seconds - then.data_wait_seconds, passed);
      row.delayed = share(one.delayed_seconds - then.delayed_seconds, passed);
      row.bytes_per_second = std::max(0.0, one.bytes - then.bytes) / passed;
      row.cores = std::max(0.0, one.cpu_seconds - then.cpu_seconds) / passed;
      row.host_cores = std::max(0.0, one.host_cpu_seconds - then.host_cpu_seconds) / passed;
    } else if (known != earlier.end() && known->second->pid != one.pid) {
      history.clear();  // another process
    }
    while (history.size() > kHistory) history.pop_front();
    row.history.assign(history.begin(), history.end());
    rows_.push_back(std::move(row));
  }
}

double Rates::planned_share() const {
  double all = 0, planned = 0, all_before = 0, planned_before = 0;
  for (const RankSample& one : now_.ranks) all += one.batches, planned += one.planned_batches;
  for (const RankSample& one : before_.ranks)
    all_before += one.batches, planned_before += one.planned_batches;
  if (all > all_before && planned >= planned_before && all_before > 0)
    return share(planned - planned_before, all - all_before);
  return share(planned, all);
}

namespace {

// Of a job in which ranks are late by turns, as whoever had no core last.
std::string short_of_cores(const std::vector<Row>& rows) {
  for (const Row& host : fold_by_host(rows)) {
    if (host.delayed < kMuch) continue;
    return "the ranks" + (host.host.empty() ? "" : " on " + host.host) + " wait for a core for " +
           in_percent(host.delayed) + " of their time" + shortage(host.host, rows);
  }
  return "";
}

std::string named(const Row& row) {
  return "rank " + std::to_string(row.rank) + (row.host.empty() ? "" : " on " + row.host);
}

// Ranks that share no memory do not see who is late; but whom all wait for waits for nobody.
std::string waits_least(const std::vector<Row>& rows) {
  const Row* least = nullptr;
  double waiting = 0, cores = 0, count = 0;
  for (const Row& row : rows) {
    if (!row.has_rates) continue;
    if (least == nullptr || row.waiting < least->waiting) least = &row;
    waiting += row.waiting, cores += row.cores, ++count;
  }
  if (count < 2) return "";
  waiting = (waiting - least->waiting) / (count - 1);
  cores = (cores - least->cores) / (count - 1);
  if (waiting - least->waiting <= kApart) return "";
  return named(*least) +
         (least->waiting < kWorthAWord
              ? " waits for nobody"
              : " waits least, " + in_percent(least->waiting) + " of its time") +
         ", the others wait " + in_percent(waiting) + " of the time; " + cause(*least, cores, rows);
}

}  // namespace

std::string slowest(const std::vector<Row>& rows) {
  const auto worst = std::max_element(rows.begin(), rows.end(),
                                      [](const Row& a, const Row& b) { return a.late < b.late; });
  if (worst == rows.end() || worst->late < kWorthAWord) {
    const std::string least = waits_least(rows);
    return least.empty() ? short_of_cores(rows) : least;
  }
  double others = 0;
  for (const Row& row : rows) others += &row == &*worst ? 0 : row.cores;
  others /= std::max<double>(1, static_cast<double>(rows.size()) - 1);
  return named(*worst) + ": the others waited for it for " + in_percent(worst->late) +
         " of their time; " + cause(*worst, others, rows);
}

std::vector<Row> fold_by_host(const std::vector<Row>& rows) {
  std::vector<Row> out;
  for (const Row& row : rows) {
    auto host =
        std::find_if(out.begin(), out.end(), [&](const Row& one) { return one.host == row.host; });
    if (host == out.end()) {
      out.push_back(row);
      out.back().state.clear();
      continue;
    }
    const auto before = static_cast<double>(host->ranks);
    const auto mean = [&](double Row::*field) {
      (*host).*field = ((*host).*field * before + row.*field) / (before + 1);
    };
    for (double Row::*field : {&Row::step_seconds, &Row::waiting, &Row::data, &Row::delayed})
      mean(field);
    host->late = std::max(host->late, row.late);
    host->steps = std::max(host->steps, row.steps);
    for (double Row::*field : {&Row::bytes_per_second, &Row::cores, &Row::resident_bytes,
                               &Row::shared_memory_bytes, &Row::stalled})
      (*host).*field += row.*field;
    ++host->ranks;
  }
  return out;
}

const char* name_of(Order order) {
  switch (order) {
    case Order::kRank: return "rank";
    case Order::kLate: return "late";
    case Order::kStep: return "step time";
    case Order::kWaiting: return "waiting";
    case Order::kCores: return "CPU";
    case Order::kMemory: return "memory";
    case Order::kOrders: break;
  }
  return "";
}

void sort_rows(std::vector<Row>* rows, Order order) {
  const auto key = [order](const Row& row) {
    switch (order) {
      case Order::kLate: return row.late;
      case Order::kStep: return row.step_seconds;
      case Order::kWaiting: return row.waiting;
      case Order::kCores: return row.cores;
      case Order::kMemory: return row.resident_bytes;
      default: return 0.0;
    }
  };
  std::stable_sort(rows->begin(), rows->end(), [&](const Row& a, const Row& b) {
    return order == Order::kRank ? a.rank < b.rank : key(a) > key(b);
  });
}

}  // namespace rueda::top
