#include "launcher/host_plan.h"

#include <algorithm>
#include <charconv>

#include "launcher/options.h"

namespace rueda::launcher {
namespace {

Status bad_part(const std::string& part, const std::string& why) {
  return invalid_argument("-H '" + part + "': " + why);
}

// Cuts "host:slots" into its halves; "slots" is empty when there is none.
Status split_part(const std::string& part, std::string* host, std::string* slots) {
  if (part.front() == '[') {
    const size_t end = part.find(']');
    if (end == std::string::npos) return bad_part(part, "the closing ] is missing");
    *host = part.substr(1, end - 1);
    if (end + 1 == part.size()) return {};
    if (part[end + 1] != ':') return bad_part(part, "expected [address]:slots");
    *slots = part.substr(end + 2);
    return slots->empty() ? bad_part(part, "slots are missing after ':'") : Status();
  }
  const auto colons = std::count(part.begin(), part.end(), ':');
  if (colons > 1) {  // a bare IPv6 address; with slots it would be ambiguous
    *host = part;
    return {};
  }
  const size_t colon = part.find(':');
  *host = part.substr(0, colon);
  if (colon == std::string::npos) return {};
  *slots = part.substr(colon + 1);
  return slots->empty() ? bad_part(part, "slots are missing after ':'") : Status();
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return text;
}

}  // namespace

Result<std::vector<HostSlots>> parse_hosts(const std::string& hosts) {
  std::vector<HostSlots> out;
  size_t begin = 0;
  while (begin <= hosts.size()) {
    const size_t comma = std::min(hosts.find(',', begin), hosts.size());
    const std::string part = hosts.substr(begin, comma - begin);
    begin = comma + 1;
    if (part.empty()) return bad_part(hosts, "empty part; expected host:slots,host:slots");
    HostSlots entry;
    std::string slots;
    RUEDA_RETURN_IF_ERROR(split_part(part, &entry.host, &slots));
    if (entry.host.empty()) return bad_part(part, "the host is missing before ':'");
    if (!slots.empty()) {
      const auto [end, error] =
          std::from_chars(slots.data(), slots.data() + slots.size(), entry.slots);
      if (error != std::errc() || end != slots.data() + slots.size() || entry.slots < 1 ||
          entry.slots > kMaxRanks) {
        return bad_part(part, "'" + slots + "' is no number of slots");
      }
    }
    out.push_back(std::move(entry));
  }
  return out;
}

Result<std::vector<RankPlace>> plan_hosts(int num_proc, const std::string& hosts,
                                          const std::vector<std::string>& own_names) {
  if (!hosts.empty()) {
    RUEDA_ASSIGN_OR_RETURN(const std::vector<HostSlots> parts, parse_hosts(hosts));
    int64_t slots = 0;
    for (const HostSlots& part : parts) {
      const std::string name = lower(part.host);
      const bool ours = std::any_of(own_names.begin(), own_names.end(),
                                    [&](const std::string& own) { return lower(own) == name; });
      if (!ours) {
        return invalid_argument("several hosts are not supported yet: '" + part.host +
                                "' is not this machine; use -H localhost:" +
                                std::to_string(num_proc) + " or leave -H out");
      }
      slots += part.slots;
    }
    if (slots < num_proc) {
      return invalid_argument("-np " + std::to_string(num_proc) + " needs " +
                              std::to_string(num_proc) + " slots, -H " + hosts + " has " +
                              std::to_string(slots));
    }
  }
  std::vector<RankPlace> places;
  for (Rank rank = 0; rank < num_proc; ++rank)
    places.push_back({rank, num_proc, rank, num_proc, 0, 1});
  return places;
}

}  // namespace rueda::launcher
