#include "runtime/negotiation/group_entry.h"

#include <algorithm>
#include <bit>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "runtime/negotiation/agreement.h"

namespace rueda::negotiation {
namespace {

using wire::Request;

constexpr int64_t kMostElements = int64_t{1} << 56;  // of a tensor, as where it is submitted

class Hash {
 public:
  void add(uint64_t value) {
    hash_ = (hash_ ^ value) * 0x9fb21c651e98df25;
    hash_ ^= hash_ >> 32;
  }
  void add(double value) { add(std::bit_cast<uint64_t>(value)); }
  void add(std::span<const int64_t> values) {
    add(uint64_t{values.size()});
    for (const int64_t value : values) add(static_cast<uint64_t>(value));
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0x2545f4914f6cdd1d;
};

// 0 means none.
uint64_t hash_of(std::span<const int64_t> rows) {
  Hash hash;
  hash.add(rows);
  return std::max(hash.value(), uint64_t{1});
}

bool rows_may_differ(CollectiveKind kind) {
  return has_sizes(kind) || kind == CollectiveKind::kScatter;
}

bool has_splits(CollectiveKind kind) {
  return kind == CollectiveKind::kAlltoall || kind == CollectiveKind::kScatter;
}

bool are_equal(std::span<const int64_t> values) {
  return std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == values.front(); });
}

// What this rank sends, where that is one number.
std::optional<int64_t> plain_rows(const Request& r) {
  if (r.shape.empty()) return std::nullopt;
  if (!has_splits(r.kind) || r.splits.empty()) return r.shape[0];
  if (!are_equal(r.splits)) return std::nullopt;
  return r.splits.front() * static_cast<int64_t>(r.splits.size());
}

// The rows that come from each member, to a member that expects exactly these.
struct Arriving {
  std::vector<int64_t> rows;
  int64_t total() const {
    uint64_t sum = 0;  // a rank may say anything
    for (const int64_t n : rows) sum += static_cast<uint64_t>(n);
    return static_cast<int64_t>(sum);
  }
};

// Whether the member at `place` receives rows whose numbers it can have expectations of.
bool receives(CollectiveKind kind, Rank place, Rank root) {
  return has_sizes(kind) && (kind != CollectiveKind::kGather || place == root);
}

Arriving arriving(CollectiveKind kind, const Sizes& sizes, Rank place, Rank ranks) {
  if (kind != CollectiveKind::kAlltoall) return {sizes};
  Arriving column;
  for (Rank from = 0; from < ranks; ++from)
    column.rows.push_back(
        sizes[static_cast<size_t>(from) * static_cast<size_t>(ranks) + static_cast<size_t>(place)]);
  return column;
}

// If all members ask for the same as this one.
bool fits(const Request& r, Rank place, Rank ranks) {
  if (!has_sizes(r.kind) || r.shape.empty()) return true;
  const int64_t each =
      r.kind == CollectiveKind::kAlltoall ? r.splits[static_cast<size_t>(place)] : r.shape[0];
  const bool has_room = r.output_rows < 0 || r.output_rows == each * ranks;
  return has_room && std::all_of(r.output_splits.begin(), r.output_splits.end(),
                                 [&](int64_t rows) { return rows == each; });
}

SizesPtr equal_sizes(const Request& own, Rank ranks) {
  if (!has_sizes(own.kind)) return nullptr;
  auto sizes = std::make_shared<Sizes>();
  for (Rank from = 0; from < ranks; ++from) {
    if (own.kind == CollectiveKind::kAlltoall) {
      sizes->insert(sizes->end(), own.splits.begin(), own.splits.end());
    } else {
      sizes->push_back(own.shape[0]);
    }
  }
  return sizes;
}

// Of one tensor that all members describe plainly; null: somebody's expectations are not met.
SizesPtr plain_sizes(CollectiveKind kind, Rank root, std::span<const GroupEntry> entries) {
  const auto ranks = static_cast<int64_t>(entries.size());
  auto sizes = std::make_shared<Sizes>();
  if (kind == CollectiveKind::kScatter) {
    const int64_t each = entries[static_cast<size_t>(root)].rows / ranks;
    for (size_t place = 0; place < entries.size(); ++place) {
      if (static_cast<Rank>(place) != root && entries[place].rows != each) return nullptr;
      sizes->push_back(each);
    }
    return sizes;
  }
  for (const GroupEntry& entry : entries) {
    if (kind == CollectiveKind::kAlltoall) {
      sizes->insert(sizes->end(), entries.size(), entry.rows / ranks);
    } else {
      sizes->push_back(entry.rows);
    }
  }
  for (size_t at = 0; at < entries.size(); ++at) {
    const auto place = static_cast<Rank>(at);
    const GroupEntry& entry = entries[at];
    if (!receives(kind, place, root) || (entry.room < 0 && entry.expected == 0)) continue;
    const Arriving comes = arriving(kind, *sizes, place, static_cast<Rank>(ranks));
    if (entry.room >= 0 && entry.room != comes.total()) return nullptr;
    if (entry.expected != 0 && entry.expected != hash_of(comes.rows)) return nullptr;
  }
  return sizes;
}

// ---- what was told ----

using ByPlace = std::vector<RequestPtr>;

Status refused(const std::string& what, const Request& first, const std::string& how) {
  return failed_precondition("Mismatched " + what + ": " + title_of(first) + ": " + how +
                             "; make all ranks submit the same");
}

SizesPtr told_sizes(const ByPlace& sent, size_t root) {
  const CollectiveKind kind = sent.front()->kind;
  if (!rows_may_differ(kind)) return nullptr;
  if (kind == CollectiveKind::kScatter) return std::make_shared<Sizes>(sent[root]->splits);
  auto sizes = std::make_shared<Sizes>();
  for (const RequestPtr& r : sent) {
    if (kind == CollectiveKind::kAlltoall) {
      sizes->insert(sizes->end(), r->splits.begin(), r->splits.end());
    } else {
      sizes->push_back(r->shape[0]);
    }
  }
  return sizes;
}

// No negative extent, and no more elements than a call can have here.
bool can_be(const Request& r) {
  int64_t count = 1;
  for (const int64_t extent : r.shape) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count) || count > kMostElements)
      return false;
  }
  int64_t rows = 0;
  for (const int64_t n : r.splits) {
    if (n < 0 || __builtin_add_overflow(rows, n, &rows) || r.shape.empty() || rows > r.shape[0])
      return false;
  }
  return true;
}

// A peer may say anything: what the sizes are made of has its number of entries, and can be.
bool is_whole(const ByPlace& sent, size_t root) {
  const size_t ranks = sent.size();
  if (root == ranks) return false;
  for (size_t place = 0; place < ranks; ++place) {
    const Request& r = *sent[place];
    if (!can_be(r)) return false;
    if (rows_may_differ(r.kind) && r.shape.empty()) return false;
    const bool splits = r.kind == CollectiveKind::kAlltoall ||
                        (r.kind == CollectiveKind::kScatter && place == root);
    if (splits && r.splits.size() != ranks) return false;
    if (!r.output_splits.empty() && r.output_splits.size() != ranks) return false;
  }
  return true;
}

// Of a scatter: has each member's output the rows that the root has for it?
Status check_scattered(const ByPlace& sent, const std::vector<Rank>& ranks, const Sizes& sizes,
                       size_t root) {
  std::string how;
  for (size_t place = 0; place < sent.size(); ++place) {
    if (place == root || sent[place]->shape[0] == sizes[place]) continue;
    how += fmt::format("{}rank {} expects {} rows, rank {} has {} for it", how.empty() ? "" : "; ",
                       ranks[place], sent[place]->shape[0], ranks[root], sizes[place]);
  }
  return how.empty() ? Status() : refused("SCATTER rows", *sent.front(), how);
}

Status check_expected(const ByPlace& sent, const std::vector<Rank>& ranks, const Sizes& sizes,
                      Rank root) {
  const CollectiveKind kind = sent.front()->kind;
  std::string how;
  for (size_t at = 0; at < sent.size(); ++at) {
    const auto place = static_cast<Rank>(at);
    const auto& expected = sent[at]->output_splits;
    if (expected.empty() || !receives(kind, place, root)) continue;
    const Arriving comes = arriving(kind, sizes, place, static_cast<Rank>(ranks.size()));
    for (size_t from = 0; from < ranks.size(); ++from) {
      if (expected[from] == comes.rows[from]) continue;
      how += fmt::format("{}rank {} expects {} rows from rank {}, which sends {}",
                         how.empty() ? "" : "; ", ranks[at], expected[from], ranks[from],
                         comes.rows[from]);
    }
  }
  return how.empty() ? Status() : refused("output splits", *sent.front(), how);
}

Result<SizesPtr> agree_on_tensor(const ByPlace& sent, const std::vector<Rank>& ranks,
                                 const std::vector<std::string>& sites) {
  const Request& first = *sent.front();
  RUEDA_RETURN_IF_ERROR(check_agreement(sent, ranks, sites));
  if (first.kind == CollectiveKind::kReducescatter) {
    const std::string text = who_sent(sent, ranks, sites, [](const Request& r) {
      return r.splits.empty() ? "no splits" : "splits " + to_string(r.splits);
    });
    if (!text.empty()) return refused("REDUCESCATTER splits", first, text);
  }
  const auto root =
      static_cast<size_t>(std::find(ranks.begin(), ranks.end(), first.root) - ranks.begin());
  if (!is_whole(sent, root)) {
    return Status(Code::kDataLoss, title_of(first) + ": a member's call is damaged");
  }
  const SizesPtr sizes = told_sizes(sent, root);
  if (first.kind == CollectiveKind::kScatter)
    RUEDA_RETURN_IF_ERROR(check_scattered(sent, ranks, *sizes, root));
  if (!has_sizes(first.kind)) return sizes;
  RUEDA_RETURN_IF_ERROR(check_expected(sent, ranks, *sizes, static_cast<Rank>(root)));
  ByPlace receivers = sent;
  for (size_t place = 0; place < sent.size(); ++place) {
    if (receives(first.kind, static_cast<Rank>(place), static_cast<Rank>(root))) continue;
    auto other = std::make_shared<Request>(*sent[place]);
    other->output_rows = -1;
    receivers[place] = std::move(other);
  }
  RUEDA_RETURN_IF_ERROR(check_output_rows(receivers, ranks, sites));
  return sizes;
}

}  // namespace

GroupEntry entry_of(std::span<const Request> tensors, Rank place, Rank ranks) {
  Hash agreed, sizes;
  agreed.add(uint64_t{tensors.size()});
  bool fit = true;
  for (const Request& r : tensors) {
    const bool differ = rows_may_differ(r.kind) && !r.shape.empty();
    agreed.add(static_cast<uint64_t>(r.kind) << 16 | static_cast<uint64_t>(r.dtype) << 8 |
               static_cast<uint64_t>(r.reduce_op) | (r.device < 0 ? 0 : uint64_t{1} << 24));
    agreed.add(static_cast<uint64_t>(r.root));
    agreed.add(r.prescale);
    agreed.add(r.postscale);
    agreed.add(uint64_t{r.shape.size()});
    agreed.add(std::span<const int64_t>(r.shape).subspan(differ ? 1 : 0));
    if (differ) sizes.add(static_cast<uint64_t>(r.shape[0]));
    (has_splits(r.kind) ? sizes : agreed).add(r.splits);
    fit = fit && fits(r, place, ranks);
  }
  GroupEntry entry;
  entry.agreed = agreed.value();
  entry.sizes = sizes.value();
  if (fit) entry.flags |= GroupEntry::kFits;
  if (tensors.size() != 1) return entry;
  const Request& only = tensors.front();
  if (const auto rows = plain_rows(only)) {
    entry.flags |= GroupEntry::kPlain;
    entry.rows = *rows;
    entry.room = only.output_rows;
    if (!only.output_splits.empty()) entry.expected = hash_of(only.output_splits);
  }
  return entry;
}

std::optional<std::vector<SizesPtr>> sizes_by_entries(std::span<const Request> own, Rank root,
                                                      std::span<const GroupEntry> entries) {
  const GroupEntry& first = entries.front();
  const auto all = [&](auto test) { return std::all_of(entries.begin(), entries.end(), test); };
  if (!all([&](const GroupEntry& e) { return e.agreed == first.agreed; })) return std::nullopt;
  const CollectiveKind kind = own.front().kind;
  std::vector<SizesPtr> sizes(own.size());
  if (!rows_may_differ(kind)) return sizes;
  const bool equal = all([&](const GroupEntry& e) { return e.sizes == first.sizes; });
  if (equal && kind != CollectiveKind::kScatter) {
    if (!all([](const GroupEntry& e) { return (e.flags & GroupEntry::kFits) != 0; }))
      return std::nullopt;
    for (size_t i = 0; i < own.size(); ++i)
      sizes[i] = equal_sizes(own[i], static_cast<Rank>(entries.size()));
    return sizes;
  }
  // A peer may say anything; what it tells is looked at more closely.
  const int64_t most = kMostElements / std::max<int64_t>(elements_per_row(own.front().shape), 1);
  if (!all([&](const GroupEntry& e) {
        return (e.flags & GroupEntry::kPlain) != 0 && e.rows >= 0 && e.rows <= most;
      })) {
    return std::nullopt;
  }
  sizes.front() = plain_sizes(kind, root, entries);
  if (sizes.front() == nullptr) return std::nullopt;
  return sizes;
}

Result<std::vector<SizesPtr>> agree_on_call(const std::vector<wire::GroupCall>& calls,
                                            const std::vector<Rank>& ranks,
                                            const std::string& which) {
  std::vector<std::string> sites;
  size_t tensors = 0;
  for (const wire::GroupCall& call : calls) {
    sites.push_back(call.place);
    tensors = std::max(tensors, call.requests.size());
  }
  // Those of one tensor, by place; a member that has fewer says how many.
  std::vector<ByPlace> all(tensors);
  ByPlace first;
  std::vector<size_t> counts;
  for (const wire::GroupCall& call : calls) {
    if (call.requests.empty()) return Status(Code::kDataLoss, "a member's call is empty");
    const CollectiveKind kind = calls.front().requests.front().kind;
    const std::string name = std::string(name_of(kind)) + "." + which;
    counts.push_back(call.requests.size());
    for (size_t i = 0; i < call.requests.size(); ++i) {
      auto request = std::make_shared<Request>(call.requests[i]);
      request->name = tensors == 1 ? name : name + "[" + std::to_string(i) + "]";
      if (i == 0) first.push_back(request);
      all[i].push_back(std::move(request));
    }
  }
  // The kind first: what else differs follows from it.
  std::string text =
      who_sent(first, ranks, sites, [](const Request& r) { return std::string(name_of(r.kind)); });
  if (!text.empty()) return refused("operations", *first.front(), text);
  size_t next = 0;
  text = who_sent(first, ranks, sites, [&](const Request&) {
    return std::to_string(counts[next++ % counts.size()]) + " tensors";
  });
  if (!text.empty()) return refused("numbers of tensors", *first.front(), text);
  std::vector<SizesPtr> sizes;
  for (const ByPlace& sent : all) {
    RUEDA_ASSIGN_OR_RETURN(SizesPtr of, agree_on_tensor(sent, ranks, sites));
    sizes.push_back(std::move(of));
  }
  return sizes;
}

}  // namespace rueda::negotiation
