#include "runtime/negotiation/agreement.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "runtime/negotiation/sizes.h"

namespace rueda::negotiation {
namespace {

using wire::Request;

std::string upper(const char* name) {
  std::string text(name);
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

// What must be equal of the shape: all of it where the result has the input's shape, else all but
// the first extent.
std::string shape_key(const Request& r) {
  const bool rows_may_differ = has_sizes(r.kind) || r.kind == CollectiveKind::kScatter;
  Shape shape = r.shape;
  if (rows_may_differ && !shape.empty()) shape[0] = -1;
  return to_string(shape) + r.layout;
}

bool shapes_differ(const std::vector<RequestPtr>& by_rank) {
  const std::string first = shape_key(*by_rank.front());
  return std::any_of(by_rank.begin(), by_rank.end(),
                     [&](const RequestPtr& r) { return shape_key(*r) != first; });
}

}  // namespace

std::string title_of(const std::string& wire_name) {
  const size_t dot = wire_name.find('.');
  if (wire_name == kJoinName) return wire_name;
  if (wire_name.compare(0, dot, name_of(CollectiveKind::kProcessSet)) == 0)
    return "the change of the process sets";
  if (dot == std::string::npos) return "'" + wire_name + "'";
  return wire_name.substr(0, dot) + " '" + wire_name.substr(dot + 1) + "'";
}

std::string title_of(const Request& request) { return title_of(request.name); }

std::string name_ranks(const std::vector<Rank>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

std::string name_sites(const std::vector<Rank>& ranks, const std::vector<std::string>& sites) {
  std::vector<std::pair<std::string, std::vector<Rank>>> groups;
  for (size_t i = 0; i < ranks.size(); ++i) {
    auto it = std::find_if(groups.begin(), groups.end(),
                           [&](const auto& group) { return group.first == sites[i]; });
    if (it == groups.end()) it = groups.insert(groups.end(), {sites[i], {}});
    it->second.push_back(ranks[i]);
  }
  std::string text;
  for (const auto& [site, callers] : groups) {
    if (site.empty()) continue;
    text += (text.empty() ? " at " : ", at ") + site;
    if (groups.size() > 1) text += " (" + name_ranks(callers) + ")";
  }
  return text;
}

std::string who_sent(const std::vector<RequestPtr>& by_rank, const std::vector<Rank>& numbers,
                     const std::vector<std::string>& sites,
                     const std::function<std::string(const Request&)>& value) {
  struct Group {
    std::string sent;
    std::vector<Rank> ranks;
    std::vector<std::string> sites;
  };
  std::vector<Group> groups;  // in order of their first rank
  for (size_t place = 0; place < by_rank.size(); ++place) {
    const std::string text = value(*by_rank[place]);
    auto it = std::find_if(groups.begin(), groups.end(),
                           [&](const Group& group) { return group.sent == text; });
    if (it == groups.end()) it = groups.insert(groups.end(), {text, {}, {}});
    it->ranks.push_back(numbers.empty() ? static_cast<Rank>(place) : numbers[place]);
    it->sites.push_back(sites.empty() ? "" : sites[place]);
  }
  if (groups.size() < 2) return "";
  std::string text;
  for (const Group& group : groups) {
    text += (text.empty() ? "" : "; ") + name_ranks(group.ranks) + " sent " + group.sent +
            name_sites(group.ranks, group.sites);
  }
  return text;
}

std::string describe_change(const Request& r) {
  if (r.root >= 0) return "to remove process set " + std::to_string(r.root);
  std::string text;
  for (const int64_t rank : r.splits) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return "to add [" + text + "]" + (r.layout.empty() ? "" : ", but " + r.layout);
}

namespace {

int64_t rows_that_arrive(const std::vector<RequestPtr>& by_place, size_t place) {
  uint64_t rows = 0;  // a rank may say anything
  for (const RequestPtr& sent : by_place) {
    if (sent == nullptr) continue;
    const bool exchanges = sent->kind == CollectiveKind::kAlltoall;
    rows += static_cast<uint64_t>(exchanges ? sent->splits[place] : sent->shape[0]);
  }
  return static_cast<int64_t>(rows);
}

}  // namespace

Status check_output_rows(const std::vector<RequestPtr>& by_place, const std::vector<Rank>& ranks,
                         const std::vector<std::string>& sites) {
  struct Wrong {
    std::vector<Rank> ranks;
    std::vector<std::string> sites;
  };
  std::map<std::pair<int64_t, int64_t>, Wrong> wrong;  // by room and what arrives
  const Request* any = nullptr;
  for (size_t place = 0; place < by_place.size(); ++place) {
    const RequestPtr& sent = by_place[place];
    if (sent == nullptr || sent->output_rows < 0) continue;
    const int64_t rows = rows_that_arrive(by_place, place);
    if (rows == sent->output_rows) continue;
    any = sent.get();
    Wrong& of = wrong[{sent->output_rows, rows}];
    of.ranks.push_back(ranks.empty() ? static_cast<Rank>(place) : ranks[place]);
    of.sites.push_back(sites.empty() ? "" : sites[place]);
  }
  if (any == nullptr) return {};
  std::string how;
  for (const auto& [rows, of] : wrong) {
    how += (how.empty() ? "" : "; ") +
           fmt::format("{} {} room for {} rows{}, {} arrive", name_ranks(of.ranks),
                       of.ranks.size() == 1 ? "has" : "have", rows.first,
                       name_sites(of.ranks, of.sites), rows.second);
  }
  return failed_precondition(
      "Mismatched " + upper(name_of(any->kind)) + " output rows: " + title_of(*any) + ": " + how +
      "; give an output of exactly the rows that the ranks send (in JAX's jit, "
      "where shapes are known before: equally many on all ranks)");
}

Status check_agreement(const std::vector<RequestPtr>& by_rank, const std::vector<Rank>& ranks,
                       const std::vector<std::string>& sites) {
  const RequestPtr& first = by_rank.front();
  const bool same =
      std::all_of(by_rank.begin(), by_rank.end(), [&](const RequestPtr& r) { return r == first; });
  const bool needs_rows = first->kind == CollectiveKind::kAllgather ||
                          first->kind == CollectiveKind::kAlltoall ||
                          first->kind == CollectiveKind::kReducescatter;
  if (same && !(needs_rows && first->shape.empty())) return {};
  const std::string title = ": " + title_of(*first) + ": ";
  const auto fail = [&](const std::string& what, const std::string& how) {
    return failed_precondition(what + title + how + "; make all ranks submit the same");
  };
  const auto whole = [](const Request& r) {
    return describe(r.dtype, r.shape) + (r.layout.empty() ? "" : " in layout " + r.layout);
  };
  const auto differ = [&](const std::function<std::string(const Request&)>& value) {
    return who_sent(by_rank, ranks, sites, value);
  };
  if (first->kind == CollectiveKind::kProcessSet) {
    const std::string asked = differ(describe_change);
    return asked.empty() ? Status()
                         : failed_precondition("Mismatched process sets: " + asked +
                                               "; make all ranks ask for the same, in one order");
  }
  std::string text = differ([](const Request& r) { return std::string(name_of(r.dtype)); });
  if (!text.empty()) return fail("Mismatched data types", differ(whole));
  text = differ([](const Request& r) { return std::string(name_of(r.kind)); });
  if (!text.empty()) return fail("Mismatched operations", text);
  if (shapes_differ(by_rank)) {
    return fail("Mismatched " + upper(name_of(first->kind)) + " tensor shapes", differ(whole));
  }
  text = differ([](const Request& r) {
    return fmt::format("prescale_factor={} postscale_factor={}", r.prescale, r.postscale);
  });
  if (!text.empty()) return fail("Mismatched prescale and/or postscale factors", text);
  text = differ([](const Request& r) { return std::string(name_of(r.reduce_op)); });
  if (!text.empty()) return fail("Mismatched reduction operation", text);
  if (needs_rows && first->shape.empty()) {
    return failed_precondition(
        "Mismatched shapes" + title + std::string(name_of(first->kind)) +
        " of a rank-zero tensor is not possible; give it one dimension at least");
  }
  text = differ([](const Request& r) { return "root rank " + std::to_string(r.root); });
  const bool is_of_group = first->kind >= CollectiveKind::kReduce;
  const std::string rooted = is_of_group ? upper(name_of(first->kind)) : "BROADCAST";
  if (!text.empty()) return fail("Mismatched " + rooted + " root ranks", text);
  text = differ(
      [](const Request& r) { return std::string(r.device < 0 ? "a CPU tensor" : "a GPU tensor"); });
  if (!text.empty()) return fail("Mismatched CPU/GPU device selection", text);
  text = differ([](const Request& r) {
    return r.group.empty() ? std::string("it outside a group")
                           : fmt::format("it in group '{}' of {}", r.group, r.group_size);
  });
  if (!text.empty()) return fail("Mismatched groups", text);
  return {};
}

}  // namespace rueda::negotiation
