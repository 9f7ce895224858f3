#include "launcher/tools/top/table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "collectives/base/utf8.h"
#include "launcher/observe/status_report.h"

namespace rueda::top {
namespace {

constexpr size_t kWide = 110;  // from here on: more columns, longer states

struct Widths {
  size_t rank = 4, host = 7, pid = 7, state = 8, steps = 6, step = 6, spark = 6;
  bool wide = false;
};

Widths widths(const Look& look) {
  Widths out;
  if (look.columns < kWide) return out;
  out.wide = true;
  out.host = 12;
  out.spark = 16;
  out.steps = 9;
  // data, core: five each, with their spaces.
  const size_t fixed =
      out.rank + out.host + out.pid + out.steps + out.step + out.spark + 5 * 7 + 6 + 13;
  out.state = std::clamp<size_t>(look.columns > fixed ? look.columns - fixed : 8, 8, 48);
  return out;
}

std::string right(const std::string& text, size_t columns) {
  const size_t length = text.size();  // ASCII
  return length >= columns ? text.substr(0, columns) : std::string(columns - length, ' ') + text;
}

std::string percent(double share) {
  char text[16];
  std::snprintf(text, sizeof(text), "%.0f%%", 100 * share);
  return text;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), value >= 1e7 ? "%.2g" : "%.0f", value);
  return text;
}

std::string giga(double bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f", bytes * 1e-9);
  return text;
}

}  // namespace

std::string fit(const std::string& text, size_t columns) {
  std::string out;
  size_t used = 0;
  for (size_t at = 0; at < text.size() && used < columns; ++used) {
    size_t end = at + 1;
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) ++end;
    out += text.substr(at, end - at);
    at = end;
  }
  return out + std::string(columns - used, ' ');
}

std::string short_time(double seconds) {
  char text[32];
  if (seconds <= 0) return "-";
  if (seconds < 1e-3)
    std::snprintf(text, sizeof(text), "%.0fus", seconds * 1e6);
  else if (seconds < 0.0995)
    std::snprintf(text, sizeof(text), "%.1fms", seconds * 1e3);
  else if (seconds < 1)
    std::snprintf(text, sizeof(text), "%.0fms", seconds * 1e3);
  else if (seconds < 100)
    std::snprintf(text, sizeof(text), "%.2fs", seconds);
  else
    std::snprintf(text, sizeof(text), "%.0fs", seconds);
  return text;
}

std::string short_bytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < std::size(kUnits)) bytes /= 1000, ++unit;
  char text[32];
  std::snprintf(text, sizeof(text), bytes < 9.95 && unit > 0 ? "%.1f%s" : "%.0f%s", bytes,
                kUnits[unit]);
  return text;
}

std::string sparkline(const std::vector<double>& values, size_t room, bool utf8) {
  constexpr const char* kBlocks[] = {"\u2581", "\u2582", "\u2583", "\u2584",
                                     "\u2585", "\u2586", "\u2587", "\u2588"};
  constexpr const char* kPlain[] = {"_", ".", "-", "=", "+", "*", "%", "#"};
  const size_t count = std::min(room, values.size());
  const auto begin = values.end() - static_cast<std::ptrdiff_t>(count);
  const double most = count == 0 ? 0 : *std::max_element(begin, values.end());
  std::string out(room - count, ' ');
  for (auto value = begin; value != values.end(); ++value) {
    const double part = most > 0 ? *value / most : 0;
    const auto level = static_cast<size_t>(std::clamp(std::lround(part * 8) - 1, 0L, 7L));
    out += (utf8 ? kBlocks : kPlain)[level];
  }
  return out;
}

void Window::keep_within(int count) {
  chosen = std::clamp(chosen, 0, std::max(0, count - 1));
  first = std::clamp(first, std::max(0, chosen - room + 1), chosen);
}

std::vector<std::string> heading(const Rates& rates, const Look& look) {
  const Sample& sample = rates.sample();
  std::string transport;
  double bytes = 0, cores = 0;
  for (const RankSample& one : sample.ranks) {
    if (transport.empty()) transport = one.transport;
  }
  for (const Row& row : rates.rows()) bytes += row.bytes_per_second, cores += row.cores;
  char text[160];
  std::snprintf(
      text, sizeof(text), "job %s  %d ranks  %s  planned %s  %s GB/s  %.1f cores%s",
      sample.job.c_str(), static_cast<int>(sample.ranks.size()),
      transport.empty() ? "-" : transport.c_str(), percent(rates.planned_share()).c_str(),
      giga(bytes).c_str(), cores,
      sample.ranks_lost > 0 ? ("  lost so far: " + number(sample.ranks_lost)).c_str() : "");
  std::vector<std::string> lines = {text, printable_text(sample.command)};
  if (!sample.health.empty()) lines.push_back("! " + printable_text(sample.health));
  const std::string slow = slowest(rates.rows());
  lines.push_back(slow.empty() ? "nobody waits for one rank in particular" : "slowest: " + slow);
  // A long one goes on in the next line.
  std::vector<std::string> out;
  for (const std::string& line : lines) {
    for (size_t at = 0; at == 0 || at < line.size();) {
      size_t end = std::min(line.size(), at + look.columns);
      if (end < line.size()) {
        const size_t space = line.rfind(' ', end);
        if (space != std::string::npos && space > at) end = space;
      }
      out.push_back(line.substr(at, end - at));
      at = end + (end < line.size() && line[end] == ' ' ? 1 : 0);
      if (at >= line.size()) break;
    }
  }
  return out;
}

std::string table_head(const Look& look) {
  const Widths w = widths(look);
  std::string out = right(look.by_host ? "RANKS" : "RANK", w.rank + 1).substr(look.by_host ? 0 : 1);
  out += " " + fit("HOST", w.host) + " " + right(look.by_host ? "" : "PID", w.pid) + " " +
         fit("STATE", w.state) + " " + right("STEPS", w.steps) + " " + right("STEP", w.step) + " " +
         fit("", w.spark) + " " + right("LATE", 4) + " " + right("WAIT", 4);
  if (w.wide) out += " " + right("DATA", 4) + " " + right("CORE", 4);
  out += " " + right("GB/s", 5) + " " + right("CPU", 4) + " " + right("MEM", 5);
  if (w.wide) out += " " + right("SHM", 5);
  return fit(out, look.columns);
}

std::string table_row(const Row& row, const Look& look) {
  const Widths w = widths(look);
  const double shown = look.by_host ? static_cast<double>(row.ranks) : row.rank;
  std::string state = row.has_joined ? row.state : "starting";
  if (row.stalled > 0) state = "stalled";
  if (!w.wide && state.starts_with("blocked in ")) state = "blocked";
  if (!w.wide && state == "computing") state = "computes";
  std::string out = right(number(shown), look.by_host ? w.rank + 1 : w.rank);
  out += " " + fit(row.host, w.host) + " " +
         right(look.by_host ? "" : std::to_string(row.pid), w.pid) + " " + fit(state, w.state) +
         " " + right(number(row.steps), w.steps) + " " +
         right(short_time(row.step_seconds), w.step) + " " +
         sparkline(row.history, w.spark, look.utf8) + " " + right(percent(row.late), 4) + " " +
         right(percent(row.waiting), 4);
  if (w.wide) out += " " + right(percent(row.data), 4) + " " + right(percent(row.delayed), 4);
  out += " " + right(giga(row.bytes_per_second), 5) + " " + right(percent(row.cores), 4) + " " +
         right(short_bytes(row.resident_bytes), 5);
  if (w.wide) out += " " + right(short_bytes(row.shared_memory_bytes), 5);
  return fit(out, look.columns);
}

std::string rates_json(const Rates& rates) {
  using launcher::json_string;
  const Sample& sample = rates.sample();
  const auto field = [](const char* name, double value) {
    char text[80];
    std::snprintf(text, sizeof(text), ",\"%s\":%.12g", name, value);
    return std::string(text);
  };
  std::string out = "{\"job\":" + json_string(sample.job) +
                    ",\"command\":" + json_string(sample.command) +
                    ",\"health\":" + json_string(sample.health) +
                    ",\"slowest\":" + json_string(slowest(rates.rows())) +
                    field("size", sample.size) + field("ranks_lost", sample.ranks_lost) +
                    field("planned_share", rates.planned_share()) + ",\"ranks\":[";
  bool first = true;
  for (const Row& row : rates.rows()) {
    out += std::string(first ? "" : ",") + "{\"rank\":" + std::to_string(row.rank) +
           ",\"host\":" + json_string(row.host) + ",\"state\":" + json_string(row.state) +
           field("pid", row.pid) + field("steps", row.steps) +
           field("step_seconds", row.step_seconds) + field("late_share", row.late) +
           field("waiting_share", row.waiting) + field("data_wait_share", row.data) +
           field("delayed_share", row.delayed) + field("bytes_per_second", row.bytes_per_second) +
           field("cores", row.cores) + field("resident_bytes", row.resident_bytes) +
           field("shared_memory_bytes", row.shared_memory_bytes) + field("stalled", row.stalled) +
           "}";
    first = false;
  }
  return out + "]}";
}

}  // namespace rueda::top
