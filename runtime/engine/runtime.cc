#include "runtime/engine/runtime.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "collectives/base/utf8.h"
#include "proto/limits.h"
#include "runtime/negotiation/agreement.h"
#include "runtime/negotiation/portions.h"
#include "runtime/observe/flight/stack_dump.h"

namespace rueda::engine {
namespace {

constexpr uint32_t kMaxTag = 0x7fffffff;
constexpr uint64_t kUnnamed = 16;  // unnamed operations of a kind under way at once

Status check_shape(const std::string& title, const Shape& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent < 0)
      return invalid_argument(title + ": negative extent in shape " + to_string(shape));
    if (__builtin_mul_overflow(count, extent, &count) || count > (int64_t{1} << 56)) {
      return invalid_argument(title + ": shape " + to_string(shape) + " has too many elements");
    }
  }
  return {};
}

// Waiters look, spin and yield only where they can drive: where all ranks share memory.
host::WaitPolicy wait_policy_of(const membership::World& world) {
  return world.shares_memory() ? host::WaitPolicy::measure(world.local_size, world.local_pids)
                               : host::WaitPolicy{};
}

flight::Identity identity_of(const membership::World& world) {
  char host[64] = {};
  gethostname(host, sizeof(host) - 1);
  return {world.rank, world.size, world.epoch, host, ""};
}

// Nothing is opened before the first GPU tensor.
std::unique_ptr<membership::World> with_machine(std::unique_ptr<membership::World> world,
                                                const Config& config) {
  nccl::Machine::Options options;
  options.driver = config.cuda_driver;
  options.library = config.nccl_library;
  options.kernels = config.cuda_kernels;
  options.allow_shared_gpu = config.allow_shared_gpu;
  options.patience = std::chrono::nanoseconds(
      static_cast<int64_t>(std::min(config.start_timeout_seconds, 1e9) * 1e9));
  options.ring = [ringer = world->doorbell->ringer()] { ringer.ring(); };
  world->machine = std::make_shared<nccl::Machine>(std::move(options));
  return world;
}

timeline::Origin origin_of(const membership::World& world) {
  timeline::Origin origin;
  origin.rank = world.rank;
  origin.name = world.names[static_cast<size_t>(world.rank)];
  origin.clock_offset = world.clock.offset;
  origin.clock_error = world.clock.error;
  return origin;
}

// Equal parts where none are given; lengths and sum are checked.
Status check_splits(const std::string& title, const Shape& shape, Rank size,
                    std::vector<int64_t>* splits) {
  if (shape.empty()) {
    splits->assign(static_cast<size_t>(size),
                   0);  // refused when all ranks have agreed on it, as for the others
    return {};
  }
  if (splits->empty()) {
    if (shape[0] % size != 0) {
      return invalid_argument(title + ": the first dimension (" + std::to_string(shape[0]) +
                              ") is not divisible by the number of ranks (" + std::to_string(size) +
                              "); give splits");
    }
    splits->assign(static_cast<size_t>(size), shape[0] / size);
    return {};
  }
  if (splits->size() != static_cast<size_t>(size)) {
    return invalid_argument(title + ": splits has " + std::to_string(splits->size()) +
                            " entries, expected one for each of " + std::to_string(size) +
                            " ranks");
  }
  if (std::any_of(splits->begin(), splits->end(), [](int64_t rows) { return rows < 0; })) {
    return invalid_argument(title + ": negative entry in splits");
  }
  int64_t sum = 0;
  for (const int64_t rows : *splits) {
    if (__builtin_add_overflow(sum, rows, &sum) || sum > shape[0]) {
      return invalid_argument(title + ": the sum of splits is greater than the first dimension (" +
                              std::to_string(shape[0]) + ")");
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Runtime>> Runtime::create(const Config& config,
                                                 std::unique_ptr<membership::World> world,
                                                 std::function<void(const std::string&)> blame) {
  std::unique_ptr<Runtime> runtime(new Runtime(config, std::move(world), std::move(blame)));
  // Before the first message of a peer is looked at: it belongs into the timeline.
  const Status opened = runtime->record(config.timeline, config.timeline_mark_cycles);
  runtime->thread_ = std::thread([driver = runtime->progress_] { driver->loop(); });
  if (runtime->world_->life) runtime->world_->life->wait_until_owned();
  if (!opened.ok()) return Status(opened.code(), opened.message() + " (RUEDA_TIMELINE)");
  return runtime;
}

Runtime::Runtime(const Config& config, std::unique_ptr<membership::World> world,
                 std::function<void(const std::string&)> blame)
    : config_(config),
      world_(with_machine(std::move(world), config_)),
      sets_(world_->rank, world_->size),
      queue_(std::make_shared<SubmissionQueue>(world_->doorbell->ringer())),
      progress_(std::make_shared<ProgressEngine>(queue_, wait_policy_of(*world_),
                                                 world_->shares_memory())),
      recorder_(origin_of(*world_), config_.summary),
      flight_(flight::FlightRecorder::open(world_->flight_fd, identity_of(*world_))),
      coordinator_(config_, world_.get(), queue_, &sets_, &recorder_, flight_.get(),
                   &progress_->blocked, &counters_, std::move(blame)) {
  progress_->attach(&coordinator_, world_.get());
  if (flight_->is_shared()) {
    const flight::StackDump stacks = flight::stack_dump();
    flight_->can_show_stacks(stacks.signal, stacks.fd);
  }
}

Runtime::~Runtime() { shutdown(); }

void Runtime::shutdown() {
  if (!thread_.joinable()) return;
  coordinator_.request_shutdown();
  thread_.join();
  queue_->detach();
  stop_timeline();
  flight_->leave();
}

Status Runtime::record(const std::string& path, bool mark_cycles) {
  const Status started = recorder_.start(path, config_.timeline_all_ranks, mark_cycles);
  progress_->set_recording(recorder_.on());
  return started;
}

Status Runtime::start_timeline(const std::string& path, bool mark_cycles) {
  if (path.empty()) return invalid_argument("the timeline's file has no name");
  if (path == "DYNAMIC")
    return invalid_argument("DYNAMIC is for RUEDA_TIMELINE; name the file to start a timeline");
  RUEDA_RETURN_IF_ERROR(queue_->closed());
  return record(path, mark_cycles);
}

void Runtime::mark(const std::string& name, timeline::Mark mark) {
  if (world_->life && mark == timeline::Mark::kBegin && name == "optimizer step")
    world_->life->step_begins();
  recorder_.mark(name, mark);
}

std::optional<life::LostRank> Runtime::lost() const {
  if (world_->life) {
    if (auto told = world_->life->lost()) return told;
  }
  const Rank peer = coordinator_.lost_peer();
  if (peer < 0) return std::nullopt;
  // Without an agent's verdict: what was known of it at init.
  life::LostRank lost;
  lost.rank = peer;
  lost.cause.set("its connection was closed");
  char host[64] = "";
  if (std::sscanf(world_->names[static_cast<size_t>(peer)].c_str(), "rank %*d (pid %d on %63[^)])",
                  &lost.pid, host) == 2) {
    lost.host.set(host);
  }
  return lost;
}

void Runtime::stop_timeline() {
  recorder_.stop();
  progress_->set_recording(recorder_.on());
}

std::optional<wire::RankSummary> Runtime::summary() {
  auto summary = recorder_.totals();
  if (!summary) return std::nullopt;
  progress_->with_progress_lock([&](Coordinator*) { summary->waited = coordinator_.waited(); });
  return summary;
}

// The n-th unnamed operation of a kind since the last join meets the n-th of every other rank. A
// few numbers go round, so that a loop of unnamed operations is cached and planned like named ones.
// The members of a group are under way together, so each has a number of its own.
std::string Runtime::number(ProcessSet* set, CollectiveKind kind, bool group) {
  const uint64_t n =
      set->unnamed[static_cast<size_t>(kind)].fetch_add(1, std::memory_order_relaxed);
  return group ? "noname.grouped." + std::to_string(n) : "noname." + std::to_string(n % kUnnamed);
}

Result<Submission> Runtime::check(Operation operation, bool with_memory, bool group) {
  RUEDA_ASSIGN_OR_RETURN(ProcessSetPtr set, sets_.find_own(operation.process_set));
  const CollectiveKind kind = operation.kind;
  const bool point_to_point = kind == CollectiveKind::kSend || kind == CollectiveKind::kRecv;
  const bool is_join = kind == CollectiveKind::kJoin;
  const bool numbered = operation.name.empty() && !point_to_point && !group && !is_join;
  if (operation.name.empty() && !is_join) {
    operation.name = point_to_point
                         ? std::to_string(operation.peer) + "." + std::to_string(operation.tag)
                         : number(set.get(), kind, group);
  }
  Submission submission;
  wire::Request& request = submission.request;
  request.name =
      is_join ? negotiation::kJoinName : std::string(name_of(kind)) + "." + operation.name;
  std::string title = negotiation::title_of(request.name);
  if (set->id != 0) title += " (process set " + std::to_string(set->id) + ")";
  if (request.name.size() > wire::kMaxNameBytes) {
    return invalid_argument("the name of a tensor may have at most " +
                            std::to_string(wire::kMaxNameBytes) + " bytes");
  }
  if (!is_valid_utf8(request.name)) {
    return invalid_argument(clean_text(title, title.size()) +
                            ": the name of a tensor must be UTF-8");
  }
  if (operation.shape.size() > wire::kMaxDims) {
    return invalid_argument(title + ": more than " + std::to_string(wire::kMaxDims) +
                            " dimensions");
  }
  RUEDA_RETURN_IF_ERROR(check_shape(title, operation.shape));
  if (!has_tensor(kind)) operation.shape = {};
  const bool has_elements = with_memory && has_tensor(kind) && element_count(operation.shape) > 0;
  if (has_elements && kind != CollectiveKind::kRecv && operation.input == nullptr) {
    return invalid_argument(title + ": no input");
  }
  if (has_elements && kind == CollectiveKind::kRecv && operation.output == nullptr) {
    return invalid_argument(title + ": no output");
  }
  if (kind == CollectiveKind::kReducescatter && operation.reduce_op != ReduceOp::kSum &&
      operation.reduce_op != ReduceOp::kAverage) {
    return invalid_argument(title + ": reducescatter only supports AVERAGE and SUM");
  }
  if (kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kReducescatter) {
    if (is_float8(operation.dtype) && operation.device < 0) {
      return invalid_argument(
          title + ": " + name_of(operation.dtype) +
          " tensors on the CPU are moved (allgather, broadcast, alltoall, send), not "
          "reduced: reduce them as float16, bfloat16 or float32, or on a GPU");
    }
    const auto scaling = plan_scaling(operation.dtype, operation.reduce_op, operation.prescale,
                                      operation.postscale, set->size());
    if (!scaling.ok()) return invalid_argument(title + ": " + scaling.status().message());
    request.reduce_op = operation.reduce_op;
    request.prescale = operation.prescale;
    request.postscale = operation.postscale;
  }
  if (kind == CollectiveKind::kBroadcast) {
    const std::optional<Rank> root = set->place_of(operation.root);
    if (!root) {
      return invalid_argument(title + ": invalid root rank " + std::to_string(operation.root) +
                              ", " +
                              (set->id == 0 ? "there are " + std::to_string(set->size()) + " ranks"
                                            : set->describe() + " does not have it"));
    }
    request.root = *root;
  }
  if (kind == CollectiveKind::kAlltoall) {
    RUEDA_RETURN_IF_ERROR(check_splits(title, operation.shape, set->size(), &operation.splits));
    request.splits = std::move(operation.splits);
  }
  if (point_to_point &&
      (operation.peer < 0 || operation.peer >= world_->size || operation.tag > kMaxTag)) {
    return invalid_argument(title + ": no rank " + std::to_string(operation.peer) +
                            ", or the tag is above " + std::to_string(kMaxTag));
  }
  if (operation.device >= 0 && has_tensor(kind)) {
    if (point_to_point) {
      return Status(Code::kUnimplemented,
                    title + ": not available for GPU tensors yet; copy the tensor to the host");
    }
    auto ready = with_memory ? world_->machine->mark(operation.device, operation.stream)
                             : world_->machine->prepare_mark(operation.device);
    if (!ready.ok()) return Status(ready.status().code(), title + ": " + ready.status().message());
    submission.ready = std::move(ready).value();
    submission.ready.stream = operation.stream;
    submission.device = operation.device;
    request.device = 0;
  }
  request.kind = kind;
  request.dtype = operation.dtype;
  request.shape = std::move(operation.shape);
  submission.numbered = numbered;
  submission.in = operation.input;
  submission.out = operation.output;
  submission.peer = operation.peer;
  submission.tag = operation.tag;
  submission.tag_space = operation.tag_space;
  submission.agreed = operation.agreed;
  submission.site = operation.site;
  submission.work = std::make_shared<Work>(std::move(title), progress_);
  submission.set = std::move(set);
  return submission;
}

Result<std::vector<std::shared_ptr<Work>>> Runtime::submit(std::vector<Operation> operations,
                                                           bool group) {
  std::vector<Submission> submissions;
  std::vector<std::shared_ptr<Work>> works;
  for (Operation& operation : operations) {
    RUEDA_ASSIGN_OR_RETURN(Submission submission, check(std::move(operation), true, group));
    if (recorder_.on()) submission.submitted = std::chrono::steady_clock::now();
    works.push_back(submission.work);
    submissions.push_back(std::move(submission));
  }
  if (group && submissions.size() > negotiation::kMaxGroup) {
    return invalid_argument("a group may have at most " + std::to_string(negotiation::kMaxGroup) +
                            " tensors, this one has " + std::to_string(submissions.size()));
  }
  if (group && submissions.size() > 1) {
    for (const Submission& submission : submissions) {
      if (submission.set != submissions.front().set)
        return invalid_argument("the tensors of a group must be of one process set");
    }
    const std::string name = submissions.front().request.name;
    for (Submission& submission : submissions) {
      submission.request.group = name;
      submission.request.group_size = static_cast<uint32_t>(submissions.size());
    }
  }
  std::vector<flight::FlightRecorder::Ticket> records;
  for (Submission& submission : submissions) {
    submission.flight = flight_->submitted(submission.request, submission.set->id, submission.site,
                                           flight::Path::kNegotiated);
    records.push_back(submission.flight);
  }
  std::vector<ProcessSetPtr> joined;
  // A message needs no agreement: this thread posts it itself, where it can.
  bool here = progress_->helps();
  for (const Submission& submission : submissions) {
    const CollectiveKind kind = submission.request.kind;
    if (kind == CollectiveKind::kJoin) joined.push_back(submission.set);
    here = here && (kind == CollectiveKind::kSend || kind == CollectiveKind::kRecv);
  }
  const Status taken = queue_->submit(std::move(submissions), !here);
  if (!taken.ok()) {
    for (const auto record : records) flight_->ended(record, flight::now_ns(), false);
    return taken;
  }
  if (here) progress_->take_queued();
  // The ranks have counted different numbers of steps.
  for (const ProcessSetPtr& set : joined) {
    for (std::atomic<uint64_t>& count : set->unnamed) count.store(0, std::memory_order_relaxed);
  }
  return works;
}

Result<std::shared_ptr<Work>> Runtime::add_process_set(std::vector<int64_t> ranks, uint32_t site) {
  std::sort(ranks.begin(), ranks.end());
  wire::Request request;
  request.root = -1;
  request.splits = std::move(ranks);
  return change_sets(std::move(request), "add_process_set", site);
}

Result<std::shared_ptr<Work>> Runtime::remove_process_set(uint32_t id, uint32_t site) {
  wire::Request request;
  request.root = static_cast<int32_t>(std::min<uint32_t>(id, INT32_MAX));
  return change_sets(std::move(request), "remove_process_set", site);
}

// Checked when all ranks have agreed on it, so that a wrong one is an error on all of them. One at
// a time: the others wait for its name.
Result<std::shared_ptr<Work>> Runtime::change_sets(wire::Request request, std::string title,
                                                   uint32_t site) {
  Submission submission;
  request.kind = CollectiveKind::kProcessSet;
  request.name = negotiation::kChangeName;
  if (request.splits.size() > wire::kMaxRanks) return invalid_argument(title + ": too many ranks");
  submission.request = std::move(request);
  submission.numbered = true;
  submission.set = sets_.global();
  submission.work = std::make_shared<Work>(std::move(title), progress_);
  std::shared_ptr<Work> work = submission.work;
  const auto record = submission.flight =
      flight_->submitted(submission.request, 0, site, flight::Path::kNegotiated);
  submission.site = site;
  std::vector<Submission> submissions;
  submissions.push_back(std::move(submission));
  const Status taken = queue_->submit(std::move(submissions));
  if (!taken.ok()) {
    flight_->ended(record, flight::now_ns(), false);
    return taken;
  }
  return work;
}

Result<std::shared_ptr<Prepared>> Runtime::prepare(Operation operation) {
  const CollectiveKind kind = operation.kind;
  if (kind != CollectiveKind::kAllreduce && kind != CollectiveKind::kBroadcast &&
      kind != CollectiveKind::kReducescatter) {
    return Status(Code::kUnimplemented,
                  std::string(name_of(kind)) +
                      " cannot be prepared: its sizes may differ each time; submit it");
  }
  if (operation.name.empty()) return invalid_argument("a prepared operation needs a name");
  RUEDA_ASSIGN_OR_RETURN(Submission submission, check(std::move(operation), false));
  RUEDA_RETURN_IF_ERROR(queue_->closed());
  submission.name = queue_->hold(submission);
  auto machine = submission.device >= 0 ? world_->machine : nullptr;
  return std::make_shared<Prepared>(std::move(submission), progress_, std::move(machine));
}

Status Runtime::run(Operation operation) {
  RUEDA_ASSIGN_OR_RETURN(Submission submission, check(std::move(operation), true));
  if (recorder_.on()) submission.submitted = std::chrono::steady_clock::now();
  const std::shared_ptr<Work> work = submission.work;
  const auto record = submission.flight = flight_->submitted(
      submission.request, submission.set->id, submission.site, flight::Path::kNegotiated);
  std::vector<Submission> submissions;
  submissions.push_back(std::move(submission));
  // This thread takes it to the coordinator itself, where it can.
  const Status taken = queue_->submit(std::move(submissions), !world_->shares_memory());
  if (!taken.ok()) {
    flight_->ended(record, flight::now_ns(), false);
    return taken;
  }
  progress_->help(work.get());
  if (!work->done()) queue_->ring();
  const Status& ended = work->sleep();
  // Nobody gets the work, so nobody could wait for its GPU.
  if (ended.ok() && work->device_end() != nullptr) return work->device_end()->wait();
  return ended;
}

counters::Values Runtime::counters() {
  progress_->with_progress_lock([](Coordinator* coordinator) {
    if (coordinator != nullptr) coordinator->count();
  });
  counters::Values now = counters_.read();
  now.wakeups = progress_->wakeups();
  now.recording = recorder_.on() ? 1 : 0;
  return now;
}

int64_t Runtime::counter(std::string_view name) {
  for (const counters::ValuesRow& row : counters::kValues) {
    if (row.name == name) return counters().*row.field;
  }
  return -1;
}

}  // namespace rueda::engine
