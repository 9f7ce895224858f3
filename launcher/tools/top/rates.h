// From what was heard in two moments to what happens in between. Pure.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "launcher/tools/top/sample.h"

namespace rueda::top {

// One rank, or the ranks of a host together.
struct Row {
  Rank rank = 0;
  size_t ranks = 1;
  int pid = 0;
  std::string host, state;
  bool has_joined = false;
  bool has_rates =
      false;  // it runs, and was heard of twice: what follows is of the time in between
  double steps = 0;
  double step_seconds = 0;  // mean of those in between; if there were none, of all
  double late = 0;          // of the time of the others on its host, what they slept until it came
  double waiting = 0;       // of its own time, waiting for operations
  double data = 0;          // and for data
  double delayed = 0;       // and for a core, of its first thread
  double bytes_per_second = 0;
  double cores = 0;       // in use
  double host_cores = 0;  // in use by all processes of its host; 0: unknown
  double resident_bytes = 0, shared_memory_bytes = 0;
  double stalled = 0;
  std::vector<double> history;  // step_seconds, the newest last
};

// Remembers what it needs of earlier moments.
class Rates {
 public:
  static constexpr size_t kHistory = 60;

  // The next moment.
  void take(const Sample& sample);
  const Sample& sample() const { return now_; }
  const std::vector<Row>& rows() const { return rows_; }  // by rank
  double planned_share() const;                           // of batches in between; of all if none

 private:
  Sample now_, before_;
  std::vector<Row> rows_;
  std::map<Rank, std::deque<double>> history_;
};

// The rank that the others wait for, and why, in one sentence: the one that is late; where nobody
// is seen to be, as between hosts, the one that waits least itself; or the host whose ranks all
// lack cores; "": nobody waits much.
std::string slowest(const std::vector<Row>& rows);
// A row for each host, in the order of its first rank.
std::vector<Row> fold_by_host(const std::vector<Row>& rows);

enum class Order { kRank, kLate, kStep, kWaiting, kCores, kMemory, kOrders };
const char* name_of(Order order);
void sort_rows(std::vector<Row>* rows, Order order);

}  // namespace rueda::top
