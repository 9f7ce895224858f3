#include "launcher/job/discovered.h"

#include <set>
#include <string>

#include "collectives/base/number_text.h"
#include "launcher/command/options.h"

namespace rueda::launcher {
namespace {

constexpr std::string_view kBlanks = " \t\r\v\f";
constexpr size_t kMostQuoted = 80;

std::string_view trimmed(std::string_view line) {
  const size_t begin = line.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of(kBlanks) + 1 - begin);
}

std::string quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, kMostQuoted))
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return out + (text.size() > kMostQuoted ? "...'" : "'");
}

// "[fd00::1]:2", "node1:4", "node1": the name, and what stands after the colon; `more` is false
// where there is none.
struct Entry {
  std::string_view name, slots;
  bool more = false;
};

Result<Entry> split(std::string_view line) {
  Entry out;
  std::string_view rest;
  if (line.front() == '[') {
    const size_t end = line.find(']');
    if (end == std::string_view::npos) return invalid_argument("']' is missing in " + quoted(line));
    out.name = line.substr(1, end - 1);
    rest = line.substr(end + 1);
    if (!rest.empty() && rest.front() != ':')
      return invalid_argument("expected [address]:slots, found " + quoted(line));
  } else {
    const size_t colon = line.find(':');
    if (colon != line.rfind(':'))
      return invalid_argument("expected host:slots, found " + quoted(line) +
                              "; an IPv6 address is written [fd00::1]:2");
    out.name = line.substr(0, colon);
    if (colon != std::string_view::npos) rest = line.substr(colon);
  }
  out.more = !rest.empty();
  if (out.more) out.slots = rest.substr(1);
  return out;
}

Result<HostSlots> read_line(std::string_view line, int slots_per_host) {
  RUEDA_ASSIGN_OR_RETURN(const Entry entry, split(line));
  HostSlots host;
  if (!is_host_name(entry.name))
    return invalid_argument(quoted(entry.name) + " is no name of a host");
  host.host = entry.name;
  host.slots = slots_per_host;
  if (entry.more && !parse_number(entry.slots, 0, kMaxRanks, &host.slots))
    return invalid_argument(quoted(entry.slots) + " is no number of slots, 0 to " +
                            std::to_string(kMaxRanks));
  if (!entry.more && slots_per_host == 0)
    return invalid_argument(quoted(entry.name) +
                            " has no number of slots; print host:slots, or say --slots-per-host N");
  return host;
}

}  // namespace

Result<std::vector<HostSlots>> parse_discovered(std::string_view text, int slots_per_host) {
  std::vector<HostSlots> out;
  std::set<std::string> seen;
  if (text.size() > kMostDiscoveredBytes) return invalid_argument("more than 1 MiB");
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty()) continue;
    auto host = read_line(line, slots_per_host);
    Status wrong = host.status();
    if (wrong.ok() && !seen.insert(host.value().host).second)
      wrong = invalid_argument("'" + host.value().host + "' is there twice");
    if (!wrong.ok())
      return invalid_argument("line " + std::to_string(number) + ": " + wrong.message());
    if (host.value().slots > 0) out.push_back(std::move(host).value());
  }
  return out;
}

}  // namespace rueda::launcher
