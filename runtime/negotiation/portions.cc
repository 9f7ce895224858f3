#include "runtime/negotiation/portions.h"

#include <algorithm>
#include <string>
#include <utility>

#include "proto/limits.h"

namespace rueda::negotiation {
namespace {

// A quarter of what is allowed: one item more than full, and a group that may not be cut, still
// fit.
constexpr size_t kFullBytes = wire::kMaxMessageBytes / 4;
constexpr size_t kFullItems = 4096;
static_assert(kFullItems <= wire::kMaxStalls && kMaxGroup + kFullItems <= wire::kMaxRequests);

// Upper bounds of the encoded sizes: a number has ten bytes at most.
size_t weight(const wire::Request& r) {
  return 80 + r.name.size() + r.group.size() + r.layout.size() +
         10 * (r.shape.size() + r.splits.size());
}
size_t weight(const wire::Stall& s) { return 32 + s.name.size() + 10 * s.missing.size(); }
size_t weight(const wire::Response& r) {
  size_t bytes = 32 + std::min(r.error.size(), wire::kMaxErrorBytes);
  for (const wire::ResponseEntry& e : r.entries) {
    bytes += 32 + e.name.size() + 10 * (e.first_dims.size() + e.splits.size() + e.absent.size());
    for (const wire::Request& request : e.neutral) bytes += weight(request);
  }
  for (const wire::StepPlan& plan : r.freeze) {
    for (const wire::PlannedBatch& batch : plan.batches) bytes += 32 + 10 * batch.ids.size();
  }
  return bytes;
}

// Fills one list after the other.
template <typename List>
class Filler {
 public:
  explicit Filler(List empty) : empty_(std::move(empty)) { lists_.push_back(empty_); }
  // The list that takes the next item.
  List& next(size_t items, size_t bytes, bool with_previous = false) {
    const bool full = items_ + items > kFullItems || bytes_ + bytes > kFullBytes;
    if (full && items_ > 0 && !with_previous) {
      lists_.push_back(empty_);
      items_ = 0;
      bytes_ = 0;
    }
    items_ += items;
    bytes_ += bytes;
    return lists_.back();
  }
  std::vector<List> take() { return std::move(lists_); }
  List& last() { return lists_.back(); }

 private:
  List empty_;
  std::vector<List> lists_;
  size_t items_ = 0;
  size_t bytes_ = 0;
};

}  // namespace

size_t max_fused(size_t ranks) {
  return std::max<size_t>(1, (kFullItems * 64) / std::max<size_t>(ranks, 64));
}

std::vector<wire::RequestList> portions(wire::RequestList list) {
  wire::RequestList empty;
  empty.epoch = list.epoch;
  empty.process_set = list.process_set;
  empty.plan = list.plan;
  empty.evictions = list.evictions;
  Filler<wire::RequestList> filler(empty);
  std::string group;  // of the request before
  for (wire::Request& request : list.requests) {
    const bool with_previous = !request.group.empty() && request.group == group;
    wire::RequestList& to = filler.next(1, weight(request), with_previous);
    group = request.group;
    to.requests.push_back(std::move(request));
  }
  for (const uint64_t id : list.cached) filler.next(1, 10).cached.push_back(id);
  for (std::string& name : list.awaited)
    filler.next(1, 8 + name.size()).awaited.push_back(std::move(name));
  for (wire::CallSite& site : list.call_sites)
    filler.next(1, 16 + site.name.size() + wire::kMaxPlaceBytes)
        .call_sites.push_back(std::move(site));
  filler.last().leaving = list.leaving;
  filler.last().joining = list.joining;
  return filler.take();
}

std::vector<wire::ResponseList> portions(wire::ResponseList list) {
  wire::ResponseList empty;
  empty.epoch = list.epoch;
  empty.process_set = list.process_set;
  Filler<wire::ResponseList> filler(empty);
  for (wire::Response& response : list.responses) {
    wire::ResponseList& to = filler.next(response.entries.size(), weight(response));
    to.responses.push_back(std::move(response));
  }
  for (wire::Stall& stall : list.stalls)
    filler.next(1, weight(stall)).stalls.push_back(std::move(stall));
  for (std::string& name : list.where)
    filler.next(1, 8 + name.size()).where.push_back(std::move(name));
  for (const uint64_t id : list.evicted) filler.next(1, 10).evicted.push_back(id);
  filler.last().left = list.left;
  filler.last().left_before = list.left_before;
  return filler.take();
}

}  // namespace rueda::negotiation
