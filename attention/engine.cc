#include "attention/engine.h"

#include <algorithm>
#include <thread>

#include "attention/program_check.h"
#include "attention/wire.h"
#include "collectives/base/float_mode.h"

namespace rueda::attention {
namespace {

// In the hash of a backward: its messages must not be taken for those of a forward elsewhere, as
// where one rank's backward computes a forward again.
constexpr uint64_t kBackward = 0x5bd0;

// Its messages and allreduces have names and tags that ordered groups have not.
Result<engine::ProcessSetPtr> set_of(const engine::Runtime& runtime, uint32_t id) {
  RUEDA_ASSIGN_OR_RETURN(engine::ProcessSetPtr set, runtime.process_sets().find_own(id));
  if (!set->ordered) return set;
  return Status(Code::kUnimplemented,
                "attention: not available in " + set->describe() + "; add a process set");
}

}  // namespace

Engine::~Engine() {
  if (workers_.is_forked()) return;
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return running_ == 0; });
}

int Engine::threads_of(int asked) const {
  if (asked > 0) return asked;
  const int ranks = runtime_ == nullptr ? 1 : std::max(1, int{runtime_->membership().local_size});
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks);
}

Result<AttentionPlan> Engine::plan(AttentionSpec spec, uint32_t process_set) const {
  if (runtime_ == nullptr) {
    spec.ranks = 1;
    return make_plan(spec, 0);
  }
  RUEDA_ASSIGN_OR_RETURN(const auto set, set_of(*runtime_, process_set));
  spec.ranks = set->size();
  return make_plan(spec, *set->place);
}

Status Engine::check_once(const AttentionPlan& plan, bool keeps_out) {
  if (!check_programs_) return {};
  const std::lock_guard lock(mutex_);
  const std::pair key(plan.report.hash, keeps_out);
  if (checked_.contains(key)) return {};
  RUEDA_RETURN_IF_ERROR(check_plan(plan, keeps_out));
  checked_.insert(key);
  return {};
}

Engine::Meeting Engine::meeting(const AttentionPlan& plan, bool backward) {
  return {plan.rank, plan.spec.ranks, plan.report.hash ^ (backward ? kBackward : 0)};
}

Result<CallPtr> Engine::start(const AttentionPlan& plan, uint32_t process_set, int threads,
                              bool backward, Body body, bool inline_call) {
  Status wrong;
  for (const DType keys : {plan.spec.dtype, computed_as(plan.spec)}) {
    if (wrong.ok())
      wrong =
          kernels_->check({plan.spec.dtype, keys, plan.spec.head_dim, plan.spec.changes_scores()});
  }
  if (!wrong.ok()) {
    if (plan.spec.ranks == 1) return wrong;
    // The others must hear of it. What the body holds, the plan among it, is kept.
    body = [wrong, kept = std::move(body)](Link* link, const Means&) {
      link->refuse();
      return wrong;
    };
  }
  RUEDA_RETURN_IF_ERROR(check_once(plan, false));
  return start(meeting(plan, backward), process_set, threads, std::move(body), inline_call);
}

Result<CallPtr> Engine::start(const Meeting& meeting, uint32_t process_set, int threads, Body body,
                              bool inline_call) {
  auto call = std::make_shared<Call>();
  Link::Place place;
  place.runtime = runtime_;
  place.process_set = process_set;
  // Never 0, which would mean the dtype, and without the bit that says a GPU tensor.
  place.agreed = static_cast<uint16_t>(meeting.hash % (transport::kGpuMeta - 1) + 1);
  uint32_t serial = 0;
  if (runtime_ != nullptr) {
    RUEDA_ASSIGN_OR_RETURN(const auto set, set_of(*runtime_, process_set));
    if (set->size() != meeting.ranks || *set->place != meeting.rank) {
      return invalid_argument("attention: the plan is for rank " + std::to_string(meeting.rank) +
                              " of " + std::to_string(meeting.ranks) + ", the process set has " +
                              std::to_string(set->size()));
    }
    place.members = set->ranks;
    serial = set->serial;
  } else if (meeting.ranks != 1) {
    return invalid_argument("attention: the plan is for several ranks");
  }
  {
    const std::lock_guard lock(mutex_);
    place.call = calls_[serial]++;
    ++running_;
    std::erase_if(left_over_, [](const auto& link) { return link->idle(); });
  }
  auto link = std::make_shared<Link>(std::move(place), call->aborted_);
  const Means means{threads_of(threads), kernels_, &workers_};
  const bool several = meeting.ranks > 1;
  const auto run = [this, call, means, several, link = std::move(link), body = std::move(body)] {
    const DefaultFloatMode mode;
    try {
      call->outcome_ = body(link.get(), means);
    } catch (const std::bad_alloc&) {
      call->outcome_ = {Code::kResourceExhausted, "attention: out of memory"};
    } catch (const std::exception& e) {
      call->outcome_ = internal_error(std::string("attention: ") + e.what());
    }
    if (several && !call->outcome_.ok()) {
      if (!link->is_known()) runtime_->fail(call->outcome_);
      link->tell_mismatch();
    }
    call->workspace_ = link->taken_at_most();
    if (link->idle()) return;
    link->abandon();
    const std::lock_guard lock(mutex_);
    left_over_.push_back(link);
  };
  const auto leave = [this] {
    const std::lock_guard lock(mutex_);
    if (--running_ == 0) ended_.notify_all();
  };
  // The next call of who waited finds this one's thread free.
  const auto ended = [call, leave] {
    call->complete(std::move(call->outcome_));
    leave();
  };
  if (inline_call) {
    run();
    ended();
    return call;
  }
  const Status started = workers_.start({run, ended});
  if (started.ok()) return call;
  const Status failed =
      started.with_message("attention: no thread for the call: " + started.message());
  if (several) runtime_->fail(failed);
  leave();
  return failed;
}

Result<CallPtr> Engine::forward(std::shared_ptr<const AttentionPlan> plan, uint32_t process_set,
                                int threads, const ForwardTensors& tensors,
                                std::shared_ptr<Saved> saved, bool inline_call) {
  const AttentionPlan& known = *plan;
  return start(
      known, process_set, threads, false,
      [plan = std::move(plan), tensors, saved = std::move(saved)](Link* link, const Means& means) {
        return attention::forward(*plan, link, means, tensors, saved.get());
      },
      inline_call);
}

Result<CallPtr> Engine::backward(std::shared_ptr<const AttentionPlan> plan, uint32_t process_set,
                                 int threads, const BackwardTensors& tensors,
                                 std::shared_ptr<const Saved> saved, bool inline_call) {
  const AttentionPlan& known = *plan;
  return start(
      known, process_set, threads, true,
      [plan = std::move(plan), tensors, saved = std::move(saved)](Link* link, const Means& means) {
        return attention::backward(*plan, link, means, tensors, saved.get());
      },
      inline_call);
}

Status Engine::run(const AttentionPlan& plan, uint32_t process_set, bool backward,
                   const DeviceKernels& kernels, bool* under_way) {
  RUEDA_RETURN_IF_ERROR(check_once(plan, true));
  RUEDA_ASSIGN_OR_RETURN(const CallPtr call, start(
                                                 meeting(plan, backward), process_set, 1,
                                                 [&](Link* link, const Means&) {
                                                   const Status status =
                                                       run_on_device(plan, backward, link, kernels);
                                                   *under_way = !status.ok() && !link->idle();
                                                   return status;
                                                 },
                                                 true));
  return call->status();
}

Status Engine::run(std::span<const AttentionPlan* const> plans, bool backward,
                   cuda::DevicePtr device, const DeviceKernels& kernels,
                   std::vector<int64_t>* sent) {
  // One of them says what all ranks do.
  if (!plans.empty()) RUEDA_RETURN_IF_ERROR(check_once(*plans.front(), true));
  return run_virtual(plans, backward, std::move(device), kernels, sent);
}

Result<Engine::Decode> Engine::meet(DecodeSpec spec, uint32_t process_set, bool on_device) const {
  spec.rank = 0;
  spec.ranks = 1;
  if (runtime_ != nullptr) {
    RUEDA_ASSIGN_OR_RETURN(const auto set, set_of(*runtime_, process_set));
    spec.ranks = set->size();
    spec.rank = *set->place;
  }
  Status wrong = check(spec);
  if (wrong.ok() && !on_device)
    wrong = kernels_->check({spec.dtype, spec.dtype, spec.head_dim, spec.changes_scores()});
  if (wrong.ok()) wrong = check_own(spec, on_device);
  const Meeting meeting{spec.rank, spec.ranks, hash_of(spec)};
  return Decode{std::move(spec), std::move(wrong), meeting};
}

Result<CallPtr> Engine::decode(DecodeSpec spec, uint32_t process_set, int threads,
                               const DecodeTensors& tensors) {
  RUEDA_ASSIGN_OR_RETURN(Decode one, meet(std::move(spec), process_set, false));
  const Meeting meeting = one.meeting;
  return start(
      meeting, process_set, threads,
      [spec = std::move(one.spec), wrong = std::move(one.wrong), tensors](Link* link,
                                                                          const Means& means) {
        if (wrong.ok()) return attention::decode(spec, link, means, tensors);
        link->refuse();
        return wrong;
      },
      meeting.ranks == 1);
}

Status Engine::decode(DecodeSpec spec, uint32_t process_set, const DeviceKernels& kernels,
                      bool* under_way) {
  RUEDA_ASSIGN_OR_RETURN(const Decode one, meet(std::move(spec), process_set, true));
  const auto body = [&](Link* link, const Means&) {
    Status status = one.wrong;
    if (status.ok()) {
      status = attention::decode(one.spec, link, kernels);
    } else {
      link->refuse();
    }
    *under_way = !status.ok() && !link->idle();
    return status;
  };
  RUEDA_ASSIGN_OR_RETURN(const CallPtr call, start(one.meeting, process_set, 1, body, true));
  return call->status();
}

}  // namespace rueda::attention
