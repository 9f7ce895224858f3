#include "runtime/engine/group_call.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "collectives/algorithms/native_communicator.h"
#include "proto/negotiation_codec.h"
#include "runtime/engine/process_set.h"

namespace rueda::engine {
namespace {

using negotiation::GroupEntry;

constexpr size_t kMostAsked = 32;
constexpr size_t kMostPrepared = 16;  // of one call: as many as a channel has posts

void mix(size_t* hash, uint64_t value) {
  *hash = (*hash ^ value) * 0x9fb21c651e98df25;
  *hash ^= *hash >> 32;
}

size_t hash_of(std::span<Request* const> members) {
  size_t hash = members.size();
  for (const Request* member : members) {
    const wire::Request& r = member->announcement;
    mix(&hash, static_cast<uint64_t>(r.kind) << 16 | static_cast<uint64_t>(r.dtype) << 8 |
                   static_cast<uint64_t>(r.reduce_op) | (r.device < 0 ? 0 : uint64_t{1} << 24));
    for (const int64_t extent : r.shape) mix(&hash, static_cast<uint64_t>(extent));
    for (const int64_t rows : r.splits) mix(&hash, static_cast<uint64_t>(rows));
    mix(&hash, static_cast<uint64_t>(r.root) << 32 | member->site);
  }
  return hash;
}

// But for the name.
bool same(const wire::Request& a, const wire::Request& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.device == b.device &&
         a.reduce_op == b.reduce_op && a.shape == b.shape && a.root == b.root &&
         a.prescale == b.prescale && a.postscale == b.postscale && a.splits == b.splits &&
         a.output_rows == b.output_rows && a.output_splits == b.output_splits;
}

bool is(const AskedCall& asked, std::span<Request* const> members) {
  if (asked.tensors.size() != members.size() || asked.site != members.front()->site) return false;
  for (size_t i = 0; i < members.size(); ++i) {
    if (!same(asked.tensors[i], members[i]->announcement)) return false;
  }
  return true;
}

// Tensors of one call with equal keys are one collective.
bool go_together(const wire::Request& a, const wire::Request& b) {
  switch (a.kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kReduce:
      return a.reduce_op != ReduceOp::kAdasum && a.dtype == b.dtype && a.reduce_op == b.reduce_op &&
             a.prescale == b.prescale && a.postscale == b.postscale && a.root == b.root;
    case CollectiveKind::kBroadcast: return a.root == b.root;
    case CollectiveKind::kAllgather: return true;
    default: return false;
  }
}

}  // namespace

bool CallSteps::done() const {
  return std::all_of(steps.begin(), steps.end(),
                     [](const Step& step) { return step.collective->done(); });
}

Status CallSteps::status() const {
  for (const Step& step : steps) {
    if (step.collective->done() && !step.collective->status().ok())
      return step.collective->status();
  }
  return {};
}

Status CallSteps::failure() const {
  Status ended = status();
  return on_gpu && nccl::is_refusal(ended) ? Status() : ended;
}

AskedCall* KnownCalls::take(std::span<Request* const> members) {
  const size_t hash = hash_of(members);
  const auto known = std::find_if(asked_.begin(), asked_.end(), [&](const auto& asked) {
    return asked->hash == hash && is(*asked, members);
  });
  AskedCall* const asked = known != asked_.end() ? known->get() : add(members, hash);
  ++asked->under_way;
  asked->used_at = ++clock_;
  return asked;
}

AskedCall* KnownCalls::add(std::span<Request* const> members, size_t hash) {
  if (asked_.size() >= kMostAsked) forget_oldest();
  auto asked = std::make_unique<AskedCall>();
  wire::GroupCall told;
  for (const Request* member : members) {
    told.requests.push_back(member->announcement);
    told.requests.back().name.clear();
  }
  asked->site = members.front()->site;
  if (asked->site != 0) told.place = site_text_(asked->site);
  asked->hash = hash;
  asked->entry = negotiation::entry_of(told.requests, *set_.place, set_.size());
  asked->told = wire::encode(told);
  asked->entry.call_bytes = static_cast<uint32_t>(asked->told.size());
  asked->tensors = std::move(told.requests);
  return asked_.emplace_back(std::move(asked)).get();
}

void KnownCalls::forget_oldest() {
  auto oldest = asked_.end();
  for (auto it = asked_.begin(); it != asked_.end(); ++it) {
    const bool older = oldest == asked_.end() || (*it)->used_at < (*oldest)->used_at;
    if ((*it)->under_way == 0 && older) oldest = it;
  }
  if (oldest != asked_.end()) asked_.erase(oldest);
}

CallSteps* KnownCalls::find(AskedCall* asked, std::span<const GroupEntry> entries) {
  for (const auto& prepared : asked->prepared) {
    if (prepared->in_use || !std::equal(prepared->entries.begin(), prepared->entries.end(),
                                        entries.begin(), entries.end())) {
      continue;
    }
    prepared->in_use = true;
    return prepared.get();
  }
  return nullptr;
}

Result<CallSteps*> KnownCalls::prepare(AskedCall* asked, std::span<const GroupEntry> entries,
                                       std::span<const negotiation::SizesPtr> sizes,
                                       ShmProtocol protocol, const Communicators& communicators) {
  using algorithms::NativeCommunicator;
  auto prepared = std::make_unique<CallSteps>();
  prepared->entries.assign(entries.begin(), entries.end());
  prepared->in_use = true;
  prepared->on_gpu = asked->on_gpu();
  std::vector<wire::Request> tensors = asked->tensors;
  for (wire::Request& tensor : tensors) tensor.root = set_.place_of(tensor.root).value_or(0);
  std::vector<bool> placed(tensors.size(), false);
  for (size_t i = 0; i < tensors.size(); ++i) {
    prepared->results.push_back(result_of(tensors[i], sizes[i], *set_.place, set_.size()));
    if (placed[i] || !has_tensor(tensors[i].kind)) continue;
    CallSteps::Step step;
    std::vector<const wire::Request*> requests;
    std::vector<negotiation::SizesPtr> of;
    for (size_t j = i; j < tensors.size(); ++j) {
      if (placed[j] || (j != i && !go_together(tensors[i], tensors[j]))) continue;
      placed[j] = true;
      step.tensors.push_back(j);
      requests.push_back(&tensors[j]);
      of.push_back(sizes[j]);
    }
    CollectiveDesc desc = describe(requests, of, set_.size());
    desc.protocol = protocol;
    RUEDA_ASSIGN_OR_RETURN(step.collective, communicators.data->init(desc));
    if (!prepared->on_gpu && NativeCommunicator::needs_buffers(*step.collective)) {
      prepared->needs_buffers |= communicators.large == nullptr;
      if (communicators.large != nullptr) {
        RUEDA_ASSIGN_OR_RETURN(step.collective, communicators.large->init(std::move(desc)));
      }
    }
    prepared->steps.push_back(std::move(step));
  }
  return asked->prepared.emplace_back(std::move(prepared)).get();
}

void KnownCalls::forget_large() {
  for (const auto& asked : asked_) {
    std::erase_if(asked->prepared, [](const auto& p) { return p->needs_buffers && !p->in_use; });
  }
}

void KnownCalls::give_back(AskedCall* asked, CallSteps* prepared) {
  prepared->in_use = false;
  // What nobody can ask for again, and what of old sizes takes the room of new ones.
  const bool is_kept = !prepared->entries.empty();
  if (is_kept && asked->prepared.size() <= kMostPrepared) return;
  const auto it = std::find_if(asked->prepared.begin(), asked->prepared.end(), [&](const auto& p) {
    return is_kept ? !p->in_use : p.get() == prepared;
  });
  asked->prepared.erase(it);
}

}  // namespace rueda::engine
