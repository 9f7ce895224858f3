#include "launcher/tools/bench/report.h"

#include <cstdio>

namespace rueda::bench {
namespace {

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), pattern, value);
  return text;
}

// Bytes that all ranks together must read or write, in units of P times the limit's 2 N.
double share_of_limit_bytes(const Row& row, double p) {
  switch (row.c.operation) {
    // N is the larger buffer: inputs of all ranks are read once, outputs written.
    case Operation::kReducescatter: return (p + 1) / (2 * p);
    case Operation::kAllgather: return (1 + p) / (2 * p);
    case Operation::kBroadcast: return (1 + (p - 1)) / (2 * p);  // one reads, the others write
    default: return 1;
  }
}

}  // namespace

double limit_microseconds(const BenchReport& report, const Row& row) {
  double found = 0;
  for (const Row& other : report.rows) {
    if (other.c.operation == Operation::kLimit && other.c.bytes == row.c.bytes &&
        other.unavailable.empty())
      found = other.microseconds;
    // The one measured just before it.
    if (&other == &row) break;
  }
  return found * share_of_limit_bytes(row, report.ranks);
}

std::string table_of(const BenchReport& report) {
  char line[256];
  std::string out = "rueda " + report.version + ", " + std::to_string(report.ranks) + " ranks\n";
  std::snprintf(line, sizeof(line), "%-13s %-5s %-8s %11s %-9s %12s %12s %8s %7s  %-6s %s\n",
                "operation", "dtype", "memory", "bytes", "call", "median us", "p99 us", "GB/s",
                "limit", "state", "result");
  out += line;
  for (const Row& row : report.rows) {
    const std::string size = row.c.set.empty() ? text_of_bytes(row.c.bytes) : row.c.set;
    std::snprintf(line, sizeof(line), "%-13s %-5s %-8s %11s ", name_of(row.c.operation),
                  name_of(row.c.dtype), row.c.arena ? "arena" : "private", size.c_str());
    out += line;
    if (!row.unavailable.empty()) {
      out += "not available: " + row.unavailable + "\n";
      continue;
    }
    const double limit = limit_microseconds(report, row);
    const bool is_limit = row.c.operation == Operation::kLimit;
    const std::string share =
        is_limit || limit <= 0 ? "-" : format("%.0f %%", 100 * limit / row.microseconds);
    const double moved = static_cast<double>(row.c.bytes) * (is_limit ? 2.0 * report.ranks : 1.0);
    std::snprintf(line, sizeof(line), "%-9s %12.2f %12.2f %8.2f %7s  %-6s %s\n", row.manner.c_str(),
                  row.microseconds, row.p99_microseconds, moved / row.microseconds / 1e3,
                  share.c_str(), state_of(row.ns_before, row.ns_after).c_str(),
                  row.wrong == 0 ? "exact" : "WRONG");
    out += line;
  }
  return out +
         "GB/s: bytes of one rank per time (limit: all bytes read and written). limit: share of "
         "the "
         "memory's speed,\nmeasured just before. state: cache line from core to core below 90 ns "
         "(NEAR), above 180 ns (FAR), else mixed.\n";
}

std::string json_of(const BenchReport& report) {
  std::string out = "{\"format\": 1, \"version\": " + json_string(report.version) +
                    ", \"ranks\": " + std::to_string(report.ranks) + ", \"rows\": [";
  for (size_t i = 0; i < report.rows.size(); ++i) {
    out += (i == 0 ? "\n  " : ",\n  ") + json_of(report.rows[i]);
  }
  return out + "\n]}\n";
}

}  // namespace rueda::bench
