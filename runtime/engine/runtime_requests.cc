// What users ask for becomes requests: checked, named, claimed, started.
#include <algorithm>
#include <utility>

#include "collectives/base/utf8.h"
#include "collectives/host/monotonic.h"
#include "proto/limits.h"
#include "runtime/engine/group_messages.h"
#include "runtime/engine/runtime.h"
#include "runtime/negotiation/agreement.h"
#include "runtime/negotiation/portions.h"

namespace rueda::engine {
namespace {

constexpr uint32_t kMaxTag = 0x7fffffff;
constexpr uint64_t kUnnamed = 16;  // unnamed calls of a kind under way at once

Status check_shape(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent < 0) return invalid_argument("negative extent in shape " + to_string(shape));
    if (__builtin_mul_overflow(count, extent, &count) || count > (int64_t{1} << 56))
      return invalid_argument("shape " + to_string(shape) + " has too many elements");
  }
  return {};
}

// Equal parts where none are given; lengths and sum are checked.
Status check_splits(const Shape& shape, Rank size, std::vector<int64_t>* splits) {
  if (shape.empty()) {
    splits->assign(static_cast<size_t>(size),
                   0);  // refused when all ranks have agreed on it, as for the others
    return {};
  }
  if (splits->empty()) {
    if (shape[0] % size != 0) {
      return invalid_argument("the first dimension (" + std::to_string(shape[0]) +
                              ") is not divisible by the number of ranks (" + std::to_string(size) +
                              "); give splits");
    }
    splits->assign(static_cast<size_t>(size), shape[0] / size);
    return {};
  }
  if (splits->size() != static_cast<size_t>(size)) {
    return invalid_argument("splits has " + std::to_string(splits->size()) +
                            " entries, expected one for each of " + std::to_string(size) +
                            " ranks");
  }
  if (std::any_of(splits->begin(), splits->end(), [](int64_t rows) { return rows < 0; }))
    return invalid_argument("negative entry in splits");
  int64_t sum = 0;
  for (const int64_t rows : *splits) {
    if (__builtin_add_overflow(sum, rows, &sum) || sum > shape[0]) {
      return invalid_argument("the sum of splits is greater than the first dimension (" +
                              std::to_string(shape[0]) + ")");
    }
  }
  return {};
}

// Allgather and alltoall write as many rows as the ranks send: into an output of the caller only
// where all agree that it has room for them.
Status check_output(const Operation& operation, bool with_memory) {
  const int64_t rows = operation.output_rows;
  if (!negotiation::has_sizes(operation.kind)) {
    return rows == -1 ? Status() : invalid_argument("has no output_rows");
  }
  if (rows < -1) return invalid_argument("output_rows (" + std::to_string(rows) + ") is negative");
  if (!with_memory) return {};
  if (operation.output != nullptr && rows < 0)
    return invalid_argument("an output needs output_rows, the rows that it has room for");
  if (operation.output == nullptr && rows > 0 && elements_per_row(operation.shape) > 0)
    return invalid_argument("no output");
  return {};
}

// An operation without a name meets that of every other rank which was made as the same one in
// turn, of its kind. Those that are started once: since the last join; a few numbers go round, so
// that a loop of them is cached and planned like named ones.
uint64_t next_number(const Request& request) {
  ProcessSet* const set = request.set.get();
  const auto kind = static_cast<size_t>(request.announcement.kind);
  auto& counted = request.persistent ? set->unnamed_persistent[kind] : set->unnamed[kind];
  return counted.fetch_add(1, std::memory_order_relaxed);
}

std::string name_of_number(const Request& request, uint64_t n) {
  if (request.persistent) return "noname.persistent." + std::to_string(n);
  return request.numbered ? "noname." + std::to_string(n % kUnnamed)
                          : "noname.grouped." + std::to_string(n);
}

// "allreduce 'x' (process set 3)"
std::string title_of(const std::string& announced, const ProcessSet& set) {
  if (set.ordered) return announced.substr(0, announced.find('.')) + " in group '" + set.key + "'";
  std::string title = negotiation::title_of(announced);
  if (set.id != 0) title += " (process set " + std::to_string(set.id) + ")";
  return title;
}

void give_name(Request* request, const std::string& name) {
  wire::Request& announced = request->announcement;
  announced.name = std::string(name_of(announced.kind)) + "." + name;
  request->set_title(title_of(announced.name, *request->set));
}

// A group of which nothing has a name counts as one call. Its first tensor is named as one outside
// a group would be, so that ranks that disagree about the group meet there and are told; the others
// are named after the group, which comes once.
void number_group(std::span<const RequestPtr> requests) {
  Request* const first = requests.front().get();
  const uint64_t n = next_number(*first);
  const std::string kind = name_of(first->announcement.kind);
  const std::string group = "noname.grouped." + std::to_string(n);
  give_name(first, name_of_number(*first, n));
  for (size_t i = 0; i < requests.size(); ++i) {
    wire::Request& announced = requests[i]->announcement;
    announced.group = kind + "." + group;
    if (i == 0) continue;
    const std::string of = announced.kind == first->announcement.kind ? "" : "." + kind;
    give_name(requests[i].get(), group + of + "[" + std::to_string(i) + "]");
  }
}

// Those of a call without a name get a number, and a group its first one's name. Only once nothing
// can refuse the call any more: what is refused on this rank alone must not count.
void number_unnamed(std::span<const RequestPtr> requests) {
  if (requests.empty()) return;
  const Request& first = *requests.front();
  if (first.numbered && first.announcement.group_size > 0) return number_group(requests);
  for (const RequestPtr& request : requests) {
    wire::Request& announced = request->announcement;
    if (request->set->ordered) continue;  // by its group
    if (announced.name.empty())
      give_name(request.get(), name_of_number(*request, next_number(*request)));
    if (announced.group_size > 0) announced.group = first.announcement.name;
  }
}

// Of an ordered group: one of its calls.
Status make_one_call(std::span<const RequestPtr> requests, bool persistent) {
  const CollectiveKind kind = requests.front()->announcement.kind;
  const bool messages = is_point_to_point(kind);  // each for itself
  for (const RequestPtr& request : requests) {
    request->announcement.group_size = 0;
    const CollectiveKind other = request->announcement.kind;
    if (messages ? !is_point_to_point(other) : other != kind)
      return invalid_argument(
          "the tensors of one call in a group must be of one kind: " + std::string(name_of(kind)) +
          " and " + name_of(request->announcement.kind));
    if (!messages && request->announcement.device != requests.front()->announcement.device)
      return invalid_argument(
          "the tensors of one call in a group must all be on the host, or all on the GPU");
  }
  if (persistent) {
    return {Code::kUnimplemented,
            "persistent requests of an ordered group are started one by one: make each alone"};
  }
  if (!messages) requests.front()->in_call = static_cast<uint32_t>(requests.size());
  return {};
}

// The ranks have counted different numbers of steps.
void count_anew_after_join(const Request& request) {
  if (request.announcement.kind != CollectiveKind::kJoin) return;
  for (auto& count : request.set->unnamed) count.store(0, std::memory_order_relaxed);
}

// What only ordered groups have, and what they have not.
Status describe_in_group(Operation* operation, const ProcessSet& set, wire::Request* announced) {
  const CollectiveKind kind = operation->kind;
  const bool by_rows = negotiation::has_sizes(kind) || kind == CollectiveKind::kReducescatter ||
                       kind == CollectiveKind::kScatter;
  if (by_rows && operation->shape.empty())
    return invalid_argument(
        "of a rank-zero tensor is not possible; give it one dimension at least");
  if (kind == CollectiveKind::kJoin) return {Code::kUnimplemented, "not available in groups"};
  const bool from_anybody =
      kind == CollectiveKind::kRecv && operation->peer == GroupMessages::kAnybody;
  if (is_point_to_point(kind) && !from_anybody && !set.place_of(operation->peer)) {
    return invalid_argument("rank " + std::to_string(operation->peer) + " is no member of " +
                            set.describe());
  }
  if (kind == CollectiveKind::kScatter) {
    // The others have the rows that they get as their shape.
    if (set.ranks[static_cast<size_t>(*set.place)] != operation->root) operation->splits.clear();
    if (set.ranks[static_cast<size_t>(*set.place)] == operation->root)
      RUEDA_RETURN_IF_ERROR(check_splits(operation->shape, set.size(), &operation->splits));
    announced->splits = std::move(operation->splits);
  }
  std::vector<int64_t>& rows = operation->output_splits;
  if (rows.empty()) return {};
  if (!by_rows || kind == CollectiveKind::kScatter) return invalid_argument("has no output_splits");
  if (rows.size() != static_cast<size_t>(set.size())) {
    return invalid_argument("output_splits has " + std::to_string(rows.size()) +
                            " entries, expected one for each of " + std::to_string(set.size()) +
                            " ranks");
  }
  int64_t sum = 0;
  for (const int64_t n : rows) {
    if (n < 0 || __builtin_add_overflow(sum, n, &sum))
      return invalid_argument("no number of rows: " + std::to_string(n) + " in output_splits");
  }
  if (kind != CollectiveKind::kReducescatter) {
    announced->output_splits = std::move(rows);
    return {};
  }
  if (sum != operation->shape[0]) {
    return invalid_argument("output_splits are " + std::to_string(sum) +
                            " rows in all, the tensor has " + std::to_string(operation->shape[0]));
  }
  announced->splits = std::move(rows);
  return {};
}

// Fills in all of the announcement but its name, or says what is wrong. job: ranks of it.
Status describe(Operation* operation, const ProcessSet& set, Rank job, bool with_memory,
                wire::Request* announced) {
  const CollectiveKind kind = operation->kind;
  if (!set.ordered && (!operation->output_splits.empty() || kind >= CollectiveKind::kReduce))
    return invalid_argument(
        "is of groups alone (rueda_open_group), or has output_splits, which are");
  if (operation->shape.size() > wire::kMaxDims)
    return invalid_argument("more than " + std::to_string(wire::kMaxDims) + " dimensions");
  RUEDA_RETURN_IF_ERROR(check_shape(operation->shape));
  // In an ordered group the root alone has a gathered or reduced result, and what is scattered.
  const bool is_root = set.place_of(operation->root) == set.place;
  if (kind != CollectiveKind::kGather || is_root)
    RUEDA_RETURN_IF_ERROR(check_output(*operation, with_memory));
  if (!has_tensor(kind)) operation->shape = {};
  const bool has_elements = with_memory && has_tensor(kind) && element_count(operation->shape) > 0;
  const bool has_input =
      kind != CollectiveKind::kRecv && (kind != CollectiveKind::kScatter || is_root);
  const bool has_output =
      kind == CollectiveKind::kRecv || (kind == CollectiveKind::kReduce && is_root);
  if (has_elements && has_input && operation->input == nullptr) return invalid_argument("no input");
  if (has_elements && has_output && operation->output == nullptr)
    return invalid_argument("no output");
  if (kind == CollectiveKind::kReducescatter && operation->reduce_op == ReduceOp::kAdasum)
    return invalid_argument("reducescatter has no ADASUM, which is of whole tensors");
  if (kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kReducescatter ||
      kind == CollectiveKind::kReduce) {
    RUEDA_RETURN_IF_ERROR(check_reduction(operation->dtype, operation->reduce_op,
                                          operation->prescale, operation->postscale,
                                          operation->device >= 0));
    announced->reduce_op = operation->reduce_op;
    announced->prescale = operation->prescale;
    announced->postscale = operation->postscale;
  }
  if (kind == CollectiveKind::kBroadcast || kind >= CollectiveKind::kReduce) {
    const std::optional<Rank> root = set.place_of(operation->root);
    if (!root) {
      return invalid_argument("invalid root rank " + std::to_string(operation->root) + ", " +
                              (set.id == 0 ? "there are " + std::to_string(set.size()) + " ranks"
                                           : set.describe() + " does not have it"));
    }
    announced->root = set.ordered ? operation->root : *root;
  }
  if (set.ordered) RUEDA_RETURN_IF_ERROR(describe_in_group(operation, set, announced));
  if (kind == CollectiveKind::kAlltoall) {
    RUEDA_RETURN_IF_ERROR(check_splits(operation->shape, set.size(), &operation->splits));
    announced->splits = std::move(operation->splits);
  }
  if (is_point_to_point(kind)) {
    const bool in_group = set.ordered;  // whose members were asked for above
    if ((!in_group && (operation->peer < 0 || operation->peer >= job)) ||
        operation->tag > kMaxTag) {
      return invalid_argument("no rank " + std::to_string(operation->peer) +
                              ", or the tag is above " + std::to_string(kMaxTag));
    }
  }
  if (operation->device >= 0 && has_tensor(kind)) announced->device = 0;
  announced->kind = kind;
  announced->output_rows = operation->output_rows;
  announced->dtype = operation->dtype;
  announced->shape = std::move(operation->shape);
  return {};
}

// Of GPU tensors: where in the stream they may be used. Of those that are started later, its
// making only.
Result<cuda::Mark> mark_of(nccl::Machine* machine, const Operation& operation, bool with_memory) {
  RUEDA_ASSIGN_OR_RETURN(cuda::Mark ready, machine->prepare_mark(operation.device));
  ready.stream = operation.stream;
  if (with_memory) RUEDA_RETURN_IF_ERROR(machine->mark_again(&ready, operation.stream));
  return ready;
}

}  // namespace

Result<RequestPtr> Runtime::make_one(Operation operation, bool persistent) {
  const bool with_memory = !persistent;
  RUEDA_ASSIGN_OR_RETURN(ProcessSetPtr set, sets_.find_own(operation.process_set));
  const CollectiveKind kind = operation.kind;
  const bool point_to_point = is_point_to_point(kind);
  const bool is_join = kind == CollectiveKind::kJoin;
  if (persistent && (point_to_point || is_join)) {
    return Status(Code::kUnimplemented,
                  std::string(name_of(kind)) + " has no persistent request: start it each time");
  }
  if (set->ordered && !operation.name.empty())
    return invalid_argument("operations in a group have no names: '" + operation.name + "'");
  const bool unnamed = operation.name.empty() && !point_to_point && !is_join;
  if (operation.name.empty() && point_to_point && !set->ordered)
    operation.name = std::to_string(operation.peer) + "." + std::to_string(operation.tag);
  wire::Request announced;
  if (is_join) {
    announced.name = negotiation::kJoinName;
  } else if (!unnamed) {
    announced.name = std::string(name_of(kind)) + "." + operation.name;
  }
  if (announced.name.size() > wire::kMaxNameBytes) {
    return invalid_argument("the name of a tensor may have at most " +
                            std::to_string(wire::kMaxNameBytes) + " bytes");
  }
  if (!is_valid_utf8(announced.name)) {
    const std::string title = title_of(announced.name, *set);
    return invalid_argument(clean_text(title, title.size()) +
                            ": the name of a tensor must be UTF-8");
  }
  const auto refused = [&](const Status& reason) {
    const std::string name =
        unnamed ? std::string(name_of(kind)) + ".noname" : std::move(announced.name);
    return reason.with_message(title_of(name, *set) + ": " + reason.message());
  };
  const Status described = describe(&operation, *set, membership().size, with_memory, &announced);
  if (!described.ok()) return refused(described);
  const bool on_device = operation.device >= 0 && has_tensor(kind);
  cuda::Mark ready;
  if (on_device) {
    auto marked = mark_of(machine_.get(), operation, with_memory);
    if (!marked.ok()) return refused(marked.status());
    ready = std::move(marked).value();
  }
  auto made = std::make_shared<Request>(
      set->ordered ? title_of(name_of(kind), *set)
                   : (unnamed ? std::string() : title_of(announced.name, *set)),
      progress_);
  if (on_device) {
    made->device = operation.device;
    made->machine = machine_;
    made->ready = std::move(ready);
  }
  made->announcement = std::move(announced);
  made->persistent = persistent;
  made->numbered = unnamed && !persistent && !set->ordered;
  made->in = operation.input;
  made->out = operation.output;
  made->peer = operation.peer;
  made->tag = operation.tag;
  made->tag_space = operation.tag_space;
  made->agreed = operation.agreed;
  made->site = operation.site;
  made->set = std::move(set);
  return made;
}

// Made one as the other; of a group.
Result<std::vector<RequestPtr>> Runtime::make_all(std::vector<Operation> operations,
                                                  bool persistent, bool group) {
  std::vector<RequestPtr> requests;
  for (Operation& operation : operations) {
    RUEDA_ASSIGN_OR_RETURN(RequestPtr request, make_one(std::move(operation), persistent));
    requests.push_back(std::move(request));
  }
  if (!group || requests.size() < 2) return requests;
  if (requests.size() > negotiation::kMaxGroup) {
    return invalid_argument("a group may have at most " + std::to_string(negotiation::kMaxGroup) +
                            " tensors, this one has " + std::to_string(requests.size()));
  }
  const bool unnamed = std::all_of(requests.begin(), requests.end(),
                                   [](const RequestPtr& request) { return request->numbered; });
  for (const RequestPtr& request : requests) {
    if (request->set != requests.front()->set)
      return invalid_argument("the tensors of a group must be of one process set");
    request->announcement.group_size = static_cast<uint32_t>(requests.size());
    request->numbered = unnamed && request == requests.front();
  }
  if (requests.front()->set->ordered) RUEDA_RETURN_IF_ERROR(make_one_call(requests, persistent));
  return requests;
}

Result<std::vector<RequestPtr>> Runtime::make(std::vector<Operation> operations, bool group) {
  RUEDA_RETURN_IF_ERROR(queue_->closed());
  RUEDA_ASSIGN_OR_RETURN(auto requests, make_all(std::move(operations), true, group));
  number_unnamed(requests);
  for (const RequestPtr& request : requests) {
    if (!request->set->ordered) request->name = queue_->hold(*request);
  }
  return requests;
}

// The requests' records are begun before anybody else can see them.
Result<std::vector<Request*>> Runtime::claim(std::span<const RequestPtr> requests) {
  RUEDA_RETURN_IF_ERROR(queue_->claim_named(requests));
  number_unnamed(requests);
  for (const RequestPtr& request : requests) {
    if (recorder_.on()) request->submitted = std::chrono::steady_clock::now();
    if (request->set->ordered) continue;  // once it has its number
    request->flight = flight_->submitted(request->announcement, request->set->id, request->site,
                                         flight::Path::kNegotiated, request->peer);
  }
  auto claimed = queue_->claim_numbered(requests);
  if (claimed.ok()) return claimed;
  for (const RequestPtr& request : requests)
    flight_->ended(request->flight, host::monotonic_ns(), false);
  return claimed;
}

Result<std::vector<RequestPtr>> Runtime::start(std::vector<Operation> operations, bool group) {
  RUEDA_ASSIGN_OR_RETURN(auto requests, make_all(std::move(operations), false, group));
  RUEDA_ASSIGN_OR_RETURN(const auto claimed, claim(requests));
  if (!claimed.empty()) progress_->start(claimed);
  for (const RequestPtr& request : requests) count_anew_after_join(*request);
  return requests;
}

Status Runtime::run(Operation operation, std::chrono::nanoseconds timeout, RequestPtr* started) {
  RUEDA_ASSIGN_OR_RETURN(RequestPtr request, make_one(std::move(operation), false));
  RUEDA_RETURN_IF_ERROR(request->check_may_wait());
  RUEDA_ASSIGN_OR_RETURN(const auto claimed, claim({&request, 1}));
  *started = request;
  count_anew_after_join(*request);
  return request->run_claimed(timeout, claimed.empty());
}

Result<RequestPtr> Runtime::add_process_set(std::vector<int64_t> ranks, uint32_t site) {
  std::sort(ranks.begin(), ranks.end());
  wire::Request change;
  change.root = -1;
  change.splits = std::move(ranks);
  return change_sets(std::move(change), "add_process_set", site);
}

Result<RequestPtr> Runtime::remove_process_set(uint32_t id, uint32_t site) {
  wire::Request change;
  change.root = static_cast<int32_t>(std::min<uint32_t>(id, INT32_MAX));
  return change_sets(std::move(change), "remove_process_set", site);
}

// Checked when all ranks have agreed on it, so that a wrong one is an error on all of them. One at
// a time: the others wait for its name.
Result<RequestPtr> Runtime::change_sets(wire::Request change, std::string title, uint32_t site) {
  if (change.splits.size() > wire::kMaxRanks) return invalid_argument(title + ": too many ranks");
  auto request = std::make_shared<Request>(std::move(title), progress_);
  request->announcement = std::move(change);
  request->announcement.kind = CollectiveKind::kProcessSet;
  request->announcement.name = negotiation::kChangeName;
  request->numbered = true;
  request->set = sets_.global();
  request->site = site;
  RUEDA_ASSIGN_OR_RETURN(const auto claimed, claim({&request, 1}));
  if (!claimed.empty()) progress_->start(claimed);
  return request;
}

}  // namespace rueda::engine
