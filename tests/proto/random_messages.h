// Seeded random messages of every kind, and the same message as libprotobuf's class: what the
// differential test compares. Values favour the edges: zero, extremes, empty, long.
#pragma once

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "proto/messages.h"
#include "wire.pb.h"

namespace rueda::wire::testing {

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}

  uint64_t below(uint64_t bound) { return engine_() % bound; }
  bool one_in(uint64_t n) { return below(n) == 0; }
  template <typename Integer>
  Integer number() {
    switch (below(6)) {
      case 0: return 0;
      case 1: return std::numeric_limits<Integer>::max();
      case 2: return std::numeric_limits<Integer>::min();
      case 3: return static_cast<Integer>(below(300));
      default: return static_cast<Integer>(engine_() >> below(64));
    }
  }
  double real() {
    const double choices[] = {0.0, -0.0, 1.0, -2.5, 1e300, std::numeric_limits<double>::infinity()};
    return choices[below(std::size(choices))];
  }
  std::string text() {
    const char* choices[] = {"", "x", "allreduce.fc1.weight", "ñandú", "日本", "🜁"};
    std::string out;
    for (uint64_t i = below(4); i > 0; --i) out += choices[below(std::size(choices))];
    return out;
  }
  std::string bytes() {
    std::string out(below(200), '\0');
    for (char& c : out) c = static_cast<char>(below(256));
    return out;
  }
  template <typename Integer>
  std::vector<Integer> numbers() {
    std::vector<Integer> out(one_in(2) ? 0 : below(9));
    for (Integer& value : out) value = number<Integer>();
    return out;
  }
  template <typename T, size_t n>
  T pick(const T (&choices)[n]) {
    return choices[below(n)];
  }
  Code code() { return static_cast<Code>(below(17)); }
  CollectiveKind kind() { return static_cast<CollectiveKind>(below(8)); }

 private:
  std::mt19937_64 engine_;
};

inline void roll(Dice& dice, Request* m) {
  m->name = dice.text();
  m->kind = dice.kind();
  m->dtype = dice.pick(kAllDTypes);
  m->reduce_op = dice.pick(kElementwiseOps);
  m->shape = dice.numbers<int64_t>();
  m->root = dice.number<int32_t>();
  m->prescale = dice.real();
  m->postscale = dice.real();
  m->splits = dice.numbers<int64_t>();
  m->device = dice.number<int32_t>();
  m->group = dice.text();
  m->group_size = dice.number<uint32_t>();
  m->layout = dice.text();
  m->output_rows = dice.number<int64_t>();
  m->output_splits = dice.numbers<int64_t>();
}

inline void roll(Dice& dice, RequestList* m) {
  m->epoch = dice.number<uint64_t>();
  m->process_set = dice.number<uint32_t>();
  m->requests.resize(dice.below(5));
  for (Request& request : m->requests) roll(dice, &request);
  m->cached = dice.numbers<uint64_t>();
  m->awaited.resize(dice.below(4));
  for (std::string& name : m->awaited) name = dice.text();
  m->leaving = dice.one_in(2);
  m->plan = dice.number<uint64_t>();
  m->joining = dice.one_in(2);
  m->call_sites.resize(dice.below(3));
  for (CallSite& site : m->call_sites) site = {dice.text(), dice.text()};
  m->evictions = dice.number<uint64_t>();
}

inline void roll(Dice& dice, ResponseList* m) {
  m->epoch = dice.number<uint64_t>();
  m->process_set = dice.number<uint32_t>();
  m->responses.resize(dice.below(4));
  for (Response& response : m->responses) {
    response.kind = dice.kind();
    response.entries.resize(dice.below(4));
    for (ResponseEntry& entry : response.entries) {
      entry.name = dice.text();
      entry.cache_id = dice.number<int64_t>();
      entry.first_dims = dice.numbers<int64_t>();
      entry.splits = dice.numbers<int64_t>();
      entry.absent = dice.numbers<int32_t>();
      entry.neutral.resize(dice.below(2));
      for (Request& request : entry.neutral) roll(dice, &request);
    }
    response.error = dice.text();
    response.error_code = dice.code();
    response.protocol = dice.number<uint32_t>();
    response.last_joined = dice.number<int32_t>();
    response.error_rank = dice.number<uint32_t>();
    response.error_of_group = dice.one_in(2);
    response.freeze.resize(dice.below(2));
    for (StepPlan& plan : response.freeze) {
      plan.generation = dice.number<uint64_t>();
      plan.batches.resize(dice.below(4));
      for (PlannedBatch& batch : plan.batches) {
        batch.ids = dice.numbers<uint64_t>();
        batch.protocol = dice.number<uint32_t>();
      }
    }
  }
  m->left = dice.one_in(2);
  m->evicted = dice.numbers<uint64_t>();
  m->where.resize(dice.below(3));
  for (std::string& name : m->where) name = dice.text();
  m->stalls.resize(dice.below(3));
  for (Stall& stall : m->stalls) {
    stall.name = dice.text();
    stall.missing = dice.numbers<int32_t>();
    stall.seconds = dice.real();
  }
  m->left = dice.one_in(2);
  m->left_before = dice.number<int32_t>();
}

inline void roll(Dice& dice, GroupWord* m) {
  m->epoch = dice.number<uint64_t>();
  m->what = static_cast<GroupWord::What>(1 + dice.below(7));
  m->number = dice.number<uint64_t>();
  m->key = dice.text();
  m->ranks = dice.numbers<int64_t>();
  m->channels = dice.number<int64_t>();
  m->calls = dice.number<uint64_t>();
  m->reason = dice.text();
  m->code = dice.code();
  m->tag = dice.number<uint32_t>();
  m->space = dice.number<uint32_t>();
}

inline void roll(Dice& dice, GroupCall* m) {
  m->requests.resize(dice.below(4));
  for (Request& request : m->requests) roll(dice, &request);
  m->place = dice.text();
}

inline void roll(Dice& dice, StoreRequest* m) {
  m->id = dice.number<uint64_t>();
  m->op = dice.pick(
      {StoreOp::kUnspecified, StoreOp::kSet, StoreOp::kGet, StoreOp::kErase, StoreOp::kEnter});
  m->key = dice.text();
  m->value = dice.bytes();
  m->timeout_ns = dice.number<uint64_t>();
  m->expected = dice.bytes();
}

inline void roll(Dice& dice, StoreReply* m) {
  m->id = dice.number<uint64_t>();
  m->code = dice.code();
  m->message = dice.text();
  m->value = dice.bytes();
  m->number = dice.number<uint64_t>();
  m->error_rank = dice.number<uint32_t>();
}

inline void roll(Dice& dice, RankSummary* m) {
  m->seconds = dice.real();
  m->stages.resize(dice.below(4));
  for (StageSum& stage : m->stages) stage = {dice.text(), dice.real(), dice.number<uint64_t>()};
  m->busy_seconds = dice.real();
  m->overlapped_seconds = dice.real();
  m->batches = dice.number<uint64_t>();
  m->planned_batches = dice.number<uint64_t>();
  m->bytes = dice.number<uint64_t>();
  m->waited.resize(dice.below(4));
  for (Waited& waited : m->waited)
    waited = {dice.number<int32_t>(), dice.real(), dice.number<uint64_t>()};
  m->resident_peak = dice.number<uint64_t>();
  m->heap_peak = dice.number<uint64_t>();
  m->host = dice.number<int32_t>();
  m->host_name = dice.text();
}

inline void roll(Dice& dice, Standing* m) {
  m->member = dice.number<uint64_t>();
  m->epoch = dice.number<uint64_t>();
  m->cause = static_cast<EnterCause>(dice.below(5));
  m->has_state = dice.one_in(2);
  m->commits = dice.number<uint64_t>();
  m->layout = dice.bytes().substr(0, 64);
  m->version = dice.text();
  m->settings = dice.text();
  m->pid = dice.number<int64_t>();
  m->process_sets.resize(dice.below(4));
  for (auto& members : m->process_sets) members = dice.numbers<uint64_t>();
  m->mirrors = dice.numbers<uint64_t>();
}

inline void roll(Dice& dice, NewEpoch* m) {
  m->answer = static_cast<EpochAnswer>(dice.below(4));
  m->text = dice.text();
  m->epoch = dice.number<uint64_t>();
  m->rank = dice.number<int32_t>();
  m->size = dice.number<int32_t>();
  m->branch = static_cast<EpochBranch>(dice.below(4));
  m->target = dice.number<uint64_t>();
  m->announced = dice.number<uint64_t>();
  m->fresh_memory = dice.one_in(2);
  m->tcp_address = dice.text();
  m->members.resize(dice.below(4));
  for (EpochMember& member : m->members) {
    member.member = dice.number<uint64_t>();
    member.host = dice.text();
    member.last_rank = dice.number<int32_t>();
    member.has_target = dice.one_in(2);
  }
  m->process_sets.resize(dice.below(4));
  for (auto& ranks : m->process_sets) ranks = dice.numbers<int32_t>();
}

inline void roll(Dice& dice, PlaceInfo* m) {
  m->version = dice.number<uint32_t>();
  m->rank = dice.number<int32_t>();
  m->size = dice.number<int32_t>();
  m->pid = dice.number<int64_t>();
  m->host_name = dice.text();
  m->host_id = dice.text();
  m->unix_address = dice.text();
  m->tcp_address = dice.text();
  m->agreed_settings = dice.text();
  m->layout_hash = dice.text();
}

// ---- the same message in libprotobuf's classes -------------------------------------------------

template <typename From, typename To>
void fill(const std::vector<From>& from, To* to) {
  to->Add(from.begin(), from.end());
}

inline void convert(const Request& m, v1::Request* p) {
  p->set_name(m.name);
  p->set_kind(static_cast<uint32_t>(m.kind));
  p->set_dtype(static_cast<uint32_t>(m.dtype));
  p->set_reduce_op(static_cast<uint32_t>(m.reduce_op));
  fill(m.shape, p->mutable_shape());
  p->set_root(m.root);
  p->set_prescale(m.prescale);
  p->set_postscale(m.postscale);
  fill(m.splits, p->mutable_splits());
  p->set_device(m.device);
  p->set_group(m.group);
  p->set_group_size(m.group_size);
  p->set_layout(m.layout);
  p->set_output_rows(m.output_rows);
  for (const int64_t rows : m.output_splits) p->add_output_splits(rows);
}

inline void convert(const RequestList& m, v1::RequestList* p) {
  p->set_epoch(m.epoch);
  p->set_process_set(m.process_set);
  for (const Request& request : m.requests) convert(request, p->add_requests());
  fill(m.cached, p->mutable_cached());
  for (const std::string& name : m.awaited) p->add_awaited(name);
  p->set_leaving(m.leaving);
  p->set_plan(m.plan);
  p->set_joining(m.joining);
  for (const CallSite& site : m.call_sites) {
    v1::CallSite* s = p->add_call_sites();
    s->set_name(site.name);
    s->set_place(site.place);
  }
  p->set_evictions(m.evictions);
}

inline void convert(const ResponseList& m, v1::ResponseList* p) {
  p->set_epoch(m.epoch);
  p->set_process_set(m.process_set);
  for (const Response& response : m.responses) {
    v1::Response* r = p->add_responses();
    r->set_kind(static_cast<uint32_t>(response.kind));
    r->set_last_joined(response.last_joined);
    r->set_error_rank(response.error_rank);
    r->set_error_of_group(response.error_of_group);
    for (const ResponseEntry& entry : response.entries) {
      v1::ResponseEntry* e = r->add_entries();
      e->set_name(entry.name);
      e->set_cache_id(entry.cache_id);
      fill(entry.first_dims, e->mutable_first_dims());
      fill(entry.splits, e->mutable_splits());
      fill(entry.absent, e->mutable_absent());
      for (const Request& request : entry.neutral) convert(request, e->add_neutral());
    }
    r->set_error(response.error);
    r->set_error_code(static_cast<uint32_t>(response.error_code));
    r->set_protocol(response.protocol);
    for (const StepPlan& plan : response.freeze) {
      v1::StepPlan* f = r->add_freeze();
      f->set_generation(plan.generation);
      for (const PlannedBatch& batch : plan.batches) {
        v1::PlannedBatch* b = f->add_batches();
        fill(batch.ids, b->mutable_ids());
        b->set_protocol(batch.protocol);
      }
    }
  }
  for (const Stall& stall : m.stalls) {
    v1::Stall* s = p->add_stalls();
    s->set_name(stall.name);
    fill(stall.missing, s->mutable_missing());
    s->set_seconds(stall.seconds);
  }
  p->set_left(m.left);
  for (const std::string& name : m.where) p->add_where(name);
  p->set_left_before(m.left_before);
  fill(m.evicted, p->mutable_evicted());
}

inline void convert(const StoreRequest& m, v1::StoreRequest* p) {
  p->set_id(m.id);
  p->set_op(static_cast<v1::StoreRequest::Op>(m.op));
  p->set_key(m.key);
  p->set_value(m.value);
  p->set_timeout_ns(m.timeout_ns);
  p->set_expected(m.expected);
}

inline void convert(const StoreReply& m, v1::StoreReply* p) {
  p->set_id(m.id);
  p->set_code(static_cast<uint32_t>(m.code));
  p->set_message(m.message);
  p->set_value(m.value);
  p->set_number(m.number);
  p->set_error_rank(m.error_rank);
}

inline void convert(const Standing& m, v1::Standing* p) {
  p->set_member(m.member);
  p->set_epoch(m.epoch);
  p->set_cause(static_cast<uint32_t>(m.cause));
  p->set_has_state(m.has_state);
  p->set_commits(m.commits);
  p->set_layout(m.layout);
  p->set_version(m.version);
  p->set_settings(m.settings);
  p->set_pid(m.pid);
  for (const auto& members : m.process_sets)
    fill(members, p->add_process_sets()->mutable_members());
  fill(m.mirrors, p->mutable_mirrors());
}

inline void convert(const NewEpoch& m, v1::NewEpoch* p) {
  p->set_answer(static_cast<uint32_t>(m.answer));
  p->set_text(m.text);
  p->set_epoch(m.epoch);
  p->set_rank(m.rank);
  p->set_size(m.size);
  p->set_branch(static_cast<uint32_t>(m.branch));
  p->set_target(m.target);
  p->set_announced(m.announced);
  p->set_fresh_memory(m.fresh_memory);
  p->set_tcp_address(m.tcp_address);
  for (const EpochMember& member : m.members) {
    v1::EpochMember* e = p->add_members();
    e->set_member(member.member);
    e->set_host(member.host);
    e->set_last_rank(member.last_rank);
    e->set_has_target(member.has_target);
  }
  for (const auto& ranks : m.process_sets) fill(ranks, p->add_process_sets()->mutable_ranks());
}

inline void convert(const PlaceInfo& m, v1::PlaceInfo* p) {
  p->set_version(m.version);
  p->set_rank(m.rank);
  p->set_size(m.size);
  p->set_pid(m.pid);
  p->set_host_name(m.host_name);
  p->set_host_id(m.host_id);
  p->set_unix_address(m.unix_address);
  p->set_tcp_address(m.tcp_address);
  p->set_agreed_settings(m.agreed_settings);
  p->set_layout_hash(m.layout_hash);
}

inline void convert(const GroupWord& m, v1::GroupWord* p) {
  p->set_epoch(m.epoch);
  p->set_what(static_cast<uint32_t>(m.what));
  p->set_number(m.number);
  p->set_key(m.key);
  for (const int64_t rank : m.ranks) p->add_ranks(rank);
  p->set_channels(m.channels);
  p->set_calls(m.calls);
  p->set_reason(m.reason);
  p->set_code(static_cast<uint32_t>(m.code));
  p->set_tag(m.tag);
  p->set_space(m.space);
}

inline void convert(const GroupCall& m, v1::GroupCall* p) {
  for (const Request& request : m.requests) convert(request, p->add_requests());
  p->set_place(m.place);
}

inline void convert(const RankSummary& m, v1::RankSummary* p) {
  p->set_seconds(m.seconds);
  for (const StageSum& stage : m.stages) {
    v1::StageSum* s = p->add_stages();
    s->set_name(stage.name);
    s->set_seconds(stage.seconds);
    s->set_count(stage.count);
  }
  p->set_busy_seconds(m.busy_seconds);
  p->set_overlapped_seconds(m.overlapped_seconds);
  p->set_batches(m.batches);
  p->set_planned_batches(m.planned_batches);
  p->set_bytes(m.bytes);
  for (const Waited& waited : m.waited) {
    v1::Waited* w = p->add_waited();
    w->set_rank(waited.rank);
    w->set_seconds(waited.seconds);
    w->set_count(waited.count);
  }
  p->set_resident_peak(m.resident_peak);
  p->set_heap_peak(m.heap_peak);
  p->set_host(m.host);
  p->set_host_name(m.host_name);
}

// Ours and libprotobuf's class of the same message.
template <typename Ours>
struct Twin;
template <>
struct Twin<Request> : std::type_identity<v1::Request> {};
template <>
struct Twin<RequestList> : std::type_identity<v1::RequestList> {};
template <>
struct Twin<ResponseList> : std::type_identity<v1::ResponseList> {};
template <>
struct Twin<GroupWord> : std::type_identity<v1::GroupWord> {};
template <>
struct Twin<GroupCall> : std::type_identity<v1::GroupCall> {};
template <>
struct Twin<StoreRequest> : std::type_identity<v1::StoreRequest> {};
template <>
struct Twin<StoreReply> : std::type_identity<v1::StoreReply> {};
template <>
struct Twin<PlaceInfo> : std::type_identity<v1::PlaceInfo> {};
template <>
struct Twin<Standing> : std::type_identity<v1::Standing> {};
template <>
struct Twin<NewEpoch> : std::type_identity<v1::NewEpoch> {};
template <>
struct Twin<RankSummary> : std::type_identity<v1::RankSummary> {};

}  // namespace rueda::wire::testing
