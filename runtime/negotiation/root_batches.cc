// The root and its batches: what is ready on all ranks gets an id and goes out.
#include <algorithm>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "runtime/negotiation/portions.h"
#include "runtime/negotiation/root.h"

namespace rueda::negotiation {
namespace {

// Tensors with equal keys may share a batch; "" never shares.
std::string fuse_key(const wire::Request& r) {
  switch (r.kind) {
    case CollectiveKind::kAllreduce:
      return fmt::format("r{}:{}:{}:{}:{}", int(r.dtype), int(r.reduce_op), r.prescale, r.postscale,
                         r.device);
    case CollectiveKind::kAllgather: return fmt::format("g{}", r.device);
    case CollectiveKind::kBroadcast: return fmt::format("b{}:{}", r.root, r.device);
    case CollectiveKind::kReducescatter:
    case CollectiveKind::kAlltoall:
    case CollectiveKind::kBarrier:
    case CollectiveKind::kJoin:
    case CollectiveKind::kProcessSet:
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
    case CollectiveKind::kReduce:
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter: return "";
  }
  return "";
}

int64_t bytes_of(const wire::Request& r) {
  return has_tensor(r.kind) ? element_count(r.shape) * static_cast<int64_t>(size_of(r.dtype)) : 0;
}

// As batches count them: of an allgather what every rank receives.
int64_t bytes_of(const Decision& decision) {
  if (decision.request().kind != CollectiveKind::kAllgather) return bytes_of(decision.request());
  int64_t bytes = 0;
  for (const RequestPtr& sent : decision.by_rank) bytes += sent == nullptr ? 0 : bytes_of(*sent);
  return bytes;
}

SizesPtr sizes_of(const Decision& decision) {
  const CollectiveKind kind = decision.request().kind;
  if (!has_sizes(kind)) return nullptr;
  const size_t ranks = decision.by_rank.size();
  auto sizes = std::make_shared<Sizes>();
  for (const RequestPtr& sent : decision.by_rank) {
    if (kind == CollectiveKind::kAllgather) {
      sizes->push_back(sent == nullptr ? 0 : sent->shape[0]);
    } else if (sent == nullptr) {
      sizes->insert(sizes->end(), ranks, 0);
    } else {
      sizes->insert(sizes->end(), sent->splits.begin(), sent->splits.end());
    }
  }
  return sizes;
}

}  // namespace

PlannedTensor Root::planned(CacheId id, const wire::Request& request, int64_t bytes) const {
  const int64_t bucket = request.device < 0 ? config_.bucket_bytes : config_.gpu_bucket_bytes;
  return {id, fuse_key(request), bytes, std::min(config_.fusion_threshold_bytes, bucket)};
}

// What was agreed on before may be part of a batch.
void Root::add_ready(Decision decision, CacheId id, Time now) {
  const IdTable::Entry& known = *ids_.get(id);
  const wire::Request& request = *known.requests.first();
  id_of_[request.name] = id;
  if (!decision.absent.empty()) absent_of_[id] = std::move(decision.absent);
  ids_.hold(id, true);  // until its batch goes out
  for (const Batch& batch : planner_.on_ready(planned(id, request, known.bytes), now))
    add_batch(batch, now);
}

// The id under which exactly this was agreed on before. Where a rank has joined, sizes are others.
std::optional<CacheId> Root::known_id(const Decision& decision) const {
  if (!decision.absent.empty() &&
      (has_sizes(decision.request().kind) || !all_equal(decision.by_rank))) {
    return std::nullopt;
  }
  if (decision.id && ids_.get(*decision.id) != nullptr) return decision.id;
  return ids_.find(decision.by_rank);
}

std::optional<CacheId> Root::new_id(const Decision& decision) {
  const wire::Request& request = decision.request();
  const bool sizes = has_sizes(request.kind);
  if (sizes && !sizes_.is_worth_an_id(request.name)) return std::nullopt;
  if (!decision.absent.empty() && (sizes || !all_equal(decision.by_rank))) return std::nullopt;
  return ids_.assign({Requests(decision.by_rank), sizes_of(decision), bytes_of(decision)});
}

// The ids that were taken back, forgotten outside the table too.
std::vector<CacheId> Root::forget_evicted(Time now) {
  std::vector<CacheId> ids;
  for (const IdTable::Gone& gone : ids_.take_evicted()) {
    ids.push_back(gone.id);
    const auto last = id_of_.find(gone.request->name);
    if (last != id_of_.end() && last->second == gone.id) id_of_.erase(last);
    for (const Batch& batch : planner_.forget(gone.id)) add_batch(batch, now);
  }
  return ids;
}

wire::ResponseEntry Root::entry_of(const Decision& decision) {
  const RequestPtr& mine = decision.first();
  wire::ResponseEntry entry;
  entry.name = mine->name;
  entry.absent = decision.absent;
  if (!entry.absent.empty()) {
    wire::Request& none = entry.neutral.emplace_back(*mine);
    none.splits.clear();
    none.output_rows = -1;
    if (has_sizes(mine->kind)) none.shape[0] = 0;
  }
  if (const auto known = known_id(decision)) {  // a member of a group
    ids_.use(*known);
    entry.cache_id = static_cast<int64_t>(*known);
    return entry;
  }
  if (const auto id = new_id(decision)) {
    entry.cache_id = static_cast<int64_t>(*id);
    if (mine->group.empty()) planner_.note_sent(planned(*id, *mine, bytes_of(decision)));
  }
  if (const SizesPtr sizes = sizes_of(decision))
    (mine->kind == CollectiveKind::kAllgather ? entry.first_dims : entry.splits) = *sizes;
  return entry;
}

// Tensors outside learnt batches: neighbours that fit together go out together.
void Root::release_fresh() {
  std::string key;
  int64_t bytes = 0;
  for (const Decision& decision : fresh_) {
    const wire::Request& request = decision.request();
    const std::string this_key = fuse_key(request);
    const int64_t this_bytes = bytes_of(decision);
    const bool joins = !responses_.empty() && responses_.back().error.empty() && !key.empty() &&
                       key == this_key && bytes + this_bytes <= config_.fusion_threshold_bytes &&
                       responses_.back().entries.size() < max_fused(members_.size());
    if (!joins) {
      wire::Response response;
      response.kind = request.kind;
      responses_.push_back(std::move(response));
      bytes = 0;
    }
    key = this_key;
    bytes += this_bytes;
    awaited_.erase(request.name);
    responses_.back().entries.push_back(entry_of(decision));
    responses_.back().protocol = protocols_.settled_protocol(request.kind, bytes);
  }
  fresh_.clear();
}

void Root::add_batch(const Batch& batch, Time now) {
  wire::Response response;
  for (const CacheId id : batch) {
    response.kind = first_of(id)->kind;
    ids_.hold(id, false);
    ids_.use(id);
    wire::ResponseEntry& entry = response.entries.emplace_back();
    entry.cache_id = static_cast<int64_t>(id);  // which says it all
    if (const auto absent = absent_of_.find(id); absent != absent_of_.end()) {
      entry.absent = std::move(absent->second);
      absent_of_.erase(absent);
    }
    awaited_.erase(name_of(id));
  }
  if (first_of(batch.front())->device < 0)
    response.protocol = protocols_.choose(response.kind, bytes_of_batch(batch), now);
  responses_.push_back(std::move(response));
}

}  // namespace rueda::negotiation
