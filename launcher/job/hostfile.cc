#include "launcher/job/hostfile.h"

#include <algorithm>
#include <unordered_map>

#include "collectives/base/number_text.h"
#include "launcher/command/options.h"

namespace rueda::launcher {
namespace {

constexpr size_t kMaxHosts = 65536;

// Cuts at `separator` outside of brackets.
std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    if (c == '[') ++depth;
    if (c == ']' && depth > 0) --depth;
    if (c == separator && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// "01-16" with its leading zeros, "20".
Status add_range(std::string_view range, const std::string& before, const std::string& after,
                 std::vector<std::string>* names) {
  const size_t dash = range.find('-');
  const std::string_view first = range.substr(0, dash);
  const std::string_view last = dash == std::string_view::npos ? first : range.substr(dash + 1);
  int low = 0, high = 0;
  if (!parse_number(first, 0, 1'000'000'000, &low) ||
      !parse_number(last, low, 1'000'000'000, &high)) {
    return invalid_argument(std::string("'").append(range) + "' is no range of numbers");
  }
  if (static_cast<size_t>(high - low) >= kMaxHosts - std::min(names->size(), kMaxHosts))
    return invalid_argument("more than " + std::to_string(kMaxHosts) + " hosts");
  for (int number = low; number <= high; ++number) {
    std::string digits = std::to_string(number);
    if (digits.size() < first.size()) digits.insert(0, first.size() - digits.size(), '0');
    names->push_back(before + digits + after);
  }
  return {};
}

// "node[01-03,7]b" -> node01b node02b node03b node7b. One pair of brackets at most.
Status expand(const std::string& name, std::vector<std::string>* names) {
  const size_t open = name.find('[');
  if (open == std::string::npos) {
    names->push_back(name);
    return {};
  }
  const size_t close = name.find(']', open);
  if (close == std::string::npos) return invalid_argument("the closing ] is missing");
  if (name.find('[', open + 1) != std::string::npos)
    return invalid_argument("more than one pair of brackets");
  for (const std::string& range : split(name.substr(open + 1, close - open - 1), ','))
    RUEDA_RETURN_IF_ERROR(add_range(range, name.substr(0, open), name.substr(close + 1), names));
  return {};
}

// Cuts "host:slots" into its halves; `slots` is empty when there is none.
Status split_slots(const std::string& part, std::string* host, std::string* slots) {
  if (part.front() == '[') {  // an IPv6 address
    const size_t end = part.find(']');
    if (end == std::string::npos) return invalid_argument("the closing ] is missing");
    *host = part.substr(1, end - 1);
    if (end + 1 == part.size()) return {};
    if (part[end + 1] != ':') return invalid_argument("expected [address]:slots");
    *slots = part.substr(end + 2);
    return slots->empty() ? invalid_argument("slots are missing after ':'") : Status();
  }
  const auto colons = std::count(part.begin(), part.end(), ':');
  if (colons > 1) {  // a bare IPv6 address; with slots it would be ambiguous
    *host = part;
    return {};
  }
  const size_t colon = part.rfind(':');
  *host = part.substr(0, colon);
  if (colon == std::string::npos) return {};
  *slots = part.substr(colon + 1);
  return slots->empty() ? invalid_argument("slots are missing after ':'") : Status();
}

// The hosts in the order in which they are named first.
class HostList {
 public:
  // Adds one entry, or its slots to an earlier entry of the same name.
  void add(HostSlots entry) {
    const auto [at, is_new] = at_.emplace(entry.host, hosts_.size());
    if (is_new) {
      hosts_.push_back(std::move(entry));
      return;
    }
    HostSlots& same = hosts_[at->second];
    same.slots = std::min(same.slots + entry.slots, kMaxRanks);
    if (!entry.user.empty()) same.user = entry.user;
    if (entry.port != 0) same.port = entry.port;
  }
  size_t size() const { return hosts_.size(); }
  std::vector<HostSlots> take() { return std::move(hosts_); }

 private:
  std::vector<HostSlots> hosts_;
  std::unordered_map<std::string, size_t> at_;
};

// "user@host:slots" with the rest of what is known of it.
Status add_entry(const std::string& text, HostSlots entry, bool slots_given, HostList* hosts) {
  std::string part = text, slots;
  const size_t at = part.find('@');
  if (at != std::string::npos) {
    entry.user = part.substr(0, at);
    part.erase(0, at + 1);
    if (!is_host_name(entry.user))
      return invalid_argument("'" + entry.user + "' is no name of a user");
  }
  if (part.empty()) return invalid_argument("the host is missing");
  std::string name;
  RUEDA_RETURN_IF_ERROR(split_slots(part, &name, &slots));
  if (name.empty()) return invalid_argument("the host is missing before ':'");
  if (!slots.empty()) {
    if (slots_given) return invalid_argument("slots are given twice");
    if (!parse_number(slots, 1, kMaxRanks, &entry.slots))
      return invalid_argument("'" + slots + "' is no number of slots");
  }
  std::vector<std::string> names;
  RUEDA_RETURN_IF_ERROR(expand(name, &names));
  for (std::string& host : names) {
    if (!is_host_name(host)) {
      return invalid_argument("'" + host +
                              "' is no name of a host (letters, digits and . _ : - only)");
    }
    entry.host = std::move(host);
    hosts->add(entry);
  }
  return {};
}

Status read_line(const std::vector<std::string>& words, int default_slots, HostList* hosts) {
  HostSlots entry;
  entry.slots = default_slots;
  bool slots_given = false;
  for (size_t i = 1; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    if (equals == std::string::npos)
      return invalid_argument("'" + words[i] + "': expected slots=N, port=N or user=NAME");
    std::string key = words[i].substr(0, equals), value = words[i].substr(equals + 1);
    std::replace(key.begin(), key.end(), '-', '_');
    int ignored = 0;
    if (key == "slots" || key == "gpus") {
      if (slots_given && key == "gpus") continue;
      if (!parse_number(value, 1, kMaxRanks, &entry.slots))
        return invalid_argument("'" + value + "' is no number of slots");
      slots_given = true;
    } else if (key == "max_slots") {
      if (!parse_number(value, 1, kMaxRanks, &ignored))
        return invalid_argument("'" + value + "' is no number of slots");
    } else if (key == "port") {
      if (!parse_number(value, 1, 65535, &entry.port))
        return invalid_argument("'" + value + "' is no port");
    } else if (key == "user") {
      if (!is_host_name(value)) return invalid_argument("'" + value + "' is no name of a user");
      entry.user = value;
    } else {
      return invalid_argument("unknown word '" + key +
                              "' (known: slots, max_slots, gpus, port, user)");
    }
  }
  return add_entry(words.front(), entry, slots_given, hosts);
}

// Words of a line, without its comment. "slots = 4" is read as "slots=4".
std::vector<std::string> words_of(std::string_view line) {
  line = line.substr(0, line.find('#'));
  std::vector<std::string> words;
  bool open = false, after_equals = false;
  for (const char c : line) {
    if (c == ' ' || c == '\t' || c == '\r') {
      open = false;
    } else if (c == '=' && !words.empty()) {
      words.back() += c;
      after_equals = open = true;
    } else {
      if (!open && !after_equals) words.emplace_back();
      words.back() += c;
      open = true;
      after_equals = false;
    }
  }
  return words;
}

}  // namespace

bool is_host_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name.front() != '-' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == ':' || c == '-';
         });
}

Result<std::vector<HostSlots>> parse_hosts(const std::string& hosts) {
  HostList out;
  for (const std::string& part : split(hosts, ',')) {
    if (part.empty()) {
      return invalid_argument("-H '" + hosts + "': empty part; expected host:slots,host:slots");
    }
    const Status added = add_entry(part, {}, false, &out);
    if (!added.ok()) return invalid_argument("-H '" + part + "': " + added.message());
  }
  return out.take();
}

Result<std::vector<HostSlots>> parse_hostfile(std::string_view text, const std::string& name,
                                              int default_slots) {
  HostList out;
  int number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    const std::vector<std::string> words = words_of(line);
    if (words.empty()) continue;
    const Status read = line.find('\0') != std::string_view::npos
                            ? invalid_argument("a zero byte: this is no text")
                            : read_line(words, default_slots, &out);
    if (!read.ok())
      return invalid_argument(name + ":" + std::to_string(number) + ": " + read.message());
    if (out.size() > kMaxHosts) return invalid_argument(name + ": too many hosts");
  }
  if (out.size() == 0) return invalid_argument(name + ": names no host");
  return out.take();
}

Result<std::vector<HostSlots>> parse_slurm(const std::string& nodes, const std::string& tasks) {
  RUEDA_ASSIGN_OR_RETURN(std::vector<HostSlots> hosts, parse_hosts(nodes));
  const std::string where = "SLURM_TASKS_PER_NODE '" + tasks + "': ";
  size_t next = 0;
  for (const std::string& part : split(tasks, ',')) {
    const size_t bracket = part.find("(x");
    int count = 0, times = 1;
    const bool repeated = bracket != std::string::npos && part.back() == ')';
    if (!parse_number(part.substr(0, bracket), 1, kMaxRanks, &count) ||
        (bracket != std::string::npos &&
         (!repeated || !parse_number(part.substr(bracket + 2, part.size() - bracket - 3), 1,
                                     kMaxRanks, &times)))) {
      return invalid_argument(where + "expected numbers as in 4(x2),2");
    }
    for (; times > 0 && next < hosts.size(); --times) hosts[next++].slots = count;
    if (times > 0) return invalid_argument(where + "more hosts than in SLURM_JOB_NODELIST");
  }
  if (next != hosts.size())
    return invalid_argument(where + "fewer hosts than in SLURM_JOB_NODELIST");
  return hosts;
}

}  // namespace rueda::launcher
