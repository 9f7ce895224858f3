#include "runtime/observe/stats/summary.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace rueda::stats {
namespace {

double seconds_of(int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

Histogram<int64_t> difference(const Histogram<int64_t>& now, const Histogram<int64_t>& then) {
  Histogram<int64_t> out;
  out.nanoseconds = now.nanoseconds - then.nanoseconds;
  for (size_t i = 0; i < Buckets::kCount; ++i)
    out.buckets[i] = std::max<int64_t>(0, now.buckets[i] - then.buckets[i]);
  return out;
}

double mean_of(const Histogram<int64_t>& histogram) {
  const int64_t count = count_of(histogram);
  return count == 0 ? 0 : seconds_of(histogram.nanoseconds) / static_cast<double>(count);
}

double share_of(int64_t part, int64_t whole) {
  return whole <= 0 ? 0
                    : std::clamp(static_cast<double>(part) / static_cast<double>(whole), 0., 1.);
}

struct Kind {
  CollectiveKind kind;
  double Summary::*operations;
  double Summary::*bytes;
};
constexpr Kind kAll[] = {
    {CollectiveKind::kAllreduce, &Summary::allreduce_operations, &Summary::allreduce_bytes},
    {CollectiveKind::kAllgather, &Summary::allgather_operations, &Summary::allgather_bytes},
    {CollectiveKind::kBroadcast, &Summary::broadcast_operations, &Summary::broadcast_bytes},
    {CollectiveKind::kReducescatter, &Summary::reducescatter_operations,
     &Summary::reducescatter_bytes},
    {CollectiveKind::kAlltoall, &Summary::alltoall_operations, &Summary::alltoall_bytes},
    {CollectiveKind::kBarrier, &Summary::barrier_operations, &Summary::barrier_bytes},
    {CollectiveKind::kSend, &Summary::send_operations, &Summary::send_bytes},
    {CollectiveKind::kRecv, &Summary::recv_operations, &Summary::recv_bytes},
    {CollectiveKind::kReduce, &Summary::reduce_operations, &Summary::reduce_bytes},
    {CollectiveKind::kGather, &Summary::gather_operations, &Summary::gather_bytes},
    {CollectiveKind::kScatter, &Summary::scatter_operations, &Summary::scatter_bytes},
};

}  // namespace

double total_of(const std::array<int64_t, kKinds>& by_kind) {
  double sum = 0;
  for (const int64_t one : by_kind) sum += static_cast<double>(one);
  return sum;
}

int64_t count_of(const Histogram<int64_t>& histogram) {
  return std::accumulate(histogram.buckets.begin(), histogram.buckets.end(), int64_t{0});
}

double quantile(const Histogram<int64_t>& histogram, double share) {
  const auto wanted = share * static_cast<double>(count_of(histogram));
  double before = 0;
  for (size_t i = 0; i < Buckets::kCount; ++i) {
    const auto here = static_cast<double>(histogram.buckets[i]);
    if (here > 0 && before + here >= wanted) {
      const int64_t from = Buckets::begin(i), to = Buckets::begin(i + 1);
      return seconds_of(from) + seconds_of(to - from) * (wanted - before) / here;
    }
    before += here;
  }
  return 0;
}

Summary summarize(const Numbers& now, const Numbers& since, double seconds, Rank size,
                  int64_t now_ns) {
  Summary out;
  out.seconds = seconds;
  out.size = size;
  int64_t all = 0;
  for (const Kind& one : kAll) {
    const auto kind = static_cast<size_t>(one.kind);
    out.*one.operations = static_cast<double>(now.operations[kind] - since.operations[kind]);
    out.*one.bytes = static_cast<double>(now.bytes[kind] - since.bytes[kind]);
    out.operations += out.*one.operations;
    out.bytes += out.*one.bytes;
    all += now.batches[kind] - since.batches[kind];
  }
  const int64_t planned = now.planned_batches - since.planned_batches;
  out.batches = static_cast<double>(all);
  out.planned_batches = static_cast<double>(planned);
  out.planned_share = share_of(planned, all);
  const auto collective = difference(now.collective, since.collective);
  out.collective_seconds_mean = mean_of(collective);
  out.collective_seconds_p95 = quantile(collective, 0.95);
  const int64_t busy = now.busy_ns - since.busy_ns;
  out.busy_seconds = seconds_of(busy);
  out.overlapped_share = share_of(busy - (now.waited_busy_ns - since.waited_busy_ns), busy);
  out.waiting_seconds =
      seconds_of(waited_until(now_ns, now.waiting_ns, now.waiting_since) - since.waiting_ns);
  for (const Late& one : late_ranks(now, since)) out.late_ranks_seconds += one.seconds;
  out.steps = static_cast<double>(now.steps - since.steps);
  const auto step = difference(now.step, since.step);
  out.step_seconds_mean = mean_of(step);
  out.step_seconds_p95 = quantile(step, 0.95);
  out.data_wait_seconds =
      seconds_of(waited_until(now_ns, now.data_ns, now.data_since) - since.data_ns);
  return out;
}

Numbers as_of(Numbers now, int64_t now_ns) {
  now.waiting_ns = waited_until(now_ns, now.waiting_ns, now.waiting_since);
  now.data_ns = waited_until(now_ns, now.data_ns, now.data_since);
  return now;
}

std::string transport_of(const Numbers& page) {
  char name[sizeof(page.transport)];
  std::memcpy(name, &page.transport, sizeof(name));
  std::string out;
  for (const char c : name) {
    const bool known = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+';
    if (known) out += c;
  }
  return out;
}

std::vector<Late> late_ranks(const Numbers& now, const Numbers& since) {
  std::vector<Late> out;
  for (size_t i = 0; i <= kLateRanks; ++i) {
    const int64_t cost = now.late[i] - since.late[i];
    if (now.late_of[i] == 0 || cost <= 0) continue;
    out.push_back({i == kLateRanks ? -1 : static_cast<Rank>(now.late_of[i] - 1), seconds_of(cost)});
  }
  return out;
}

}  // namespace rueda::stats
