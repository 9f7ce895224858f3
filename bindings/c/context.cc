#include "bindings/c/context.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <optional>

#include "collectives/base/log.h"
#include "collectives/host/fork_guard.h"
#include "runtime/observe/counters/counters.h"
#include "runtime/observe/flight/stack_dump.h"

namespace rueda::c_abi {

int32_t report(const Status& status, rueda_error* error) {
  if (error != nullptr && error->struct_size >= offsetof(rueda_error, message) + 1) {
    error->code = static_cast<int32_t>(status.code());
    // Those whose messages are damaged are lost as well. Who has left in order is not.
    const bool lost = status.code() == Code::kUnavailable || status.code() == Code::kDataLoss;
    error->lost_rank = lost ? status.facts().rank : -1;
    const size_t room = error->struct_size - offsetof(rueda_error, message) - 1;
    const size_t count = std::min({status.message().size(), room, sizeof(error->message) - 1});
    std::memcpy(error->message, status.message().data(), count);
    error->message[count] = '\0';
  }
  return static_cast<int32_t>(status.code());
}

Result<MemberPtr> use(const rueda_context* context) {
  if (context == nullptr)
    return failed_precondition("rueda has not been initialized on this rank: call init first");
  RUEDA_RETURN_IF_ERROR(check_process(context->process));
  auto* const own = const_cast<rueda_context*>(context);  // its lock is no part of what it says
  const std::lock_guard lock(own->mutex);
  if (own->member == nullptr && !own->was_left) {
    return failed_precondition(
        "this rank joins a running job: collectives come after elastic.run has let it in");
  }
  if (own->member == nullptr)
    return failed_precondition("rueda has been shut down on this rank: call init again");
  return own->member;
}

const EpochRecord* provisional(const rueda_context* context) {
  if (context == nullptr || !check_process(context->process).ok()) return nullptr;
  auto* const own = const_cast<rueda_context*>(context);
  const std::lock_guard lock(own->mutex);
  const bool is = own->member == nullptr && !own->was_left;
  return is ? own->epoch.get() : nullptr;
}

MemberPtr try_use(const rueda_context* context) noexcept {
  return guarded_value(MemberPtr(), [&] {
    auto member = use(context);
    return member.ok() ? std::move(member).value() : nullptr;
  });
}

Status check_process(uint64_t process) {
  if (process == host::fork_generation()) return {};
  return failed_precondition(
      "this process was forked from a rank of rueda and is none itself: call rueda only in the "
      "process that called init, or start the child with spawn");
}

attention::Kernels& kernels() {
  static auto* const one = new attention::Kernels;  // calls may end after static destruction
  return *one;
}

attention::Engine* Member::attention() {
  const std::lock_guard lock(attention_mutex_);
  if (attention_ == nullptr)
    attention_ = std::make_unique<attention::Engine>(runtime.get(), &kernels(), check_programs);
  return attention_.get();
}

void Member::leave(bool goes_on) {
  runtime->shutdown(goes_on);
  const std::optional<wire::RankSummary> summary = runtime->summary();
  if (summary && tell_summary) tell_summary(*summary);
}

}  // namespace rueda::c_abi

using rueda::c_abi::guarded_value;
using rueda::c_abi::MemberPtr;
using rueda::c_abi::try_use;

namespace {

template <typename Get>
int32_t place(const rueda_context* context, Get get) {
  const MemberPtr member = try_use(context);
  if (member != nullptr) return get(member->runtime->membership());
  const auto* const expected = rueda::c_abi::provisional(context);
  return expected == nullptr ? -1 : get(expected->expected);
}

void leave(rueda_context* context) {
  context->given_up.store(true);  // who waits to enter the next epoch ends
  const std::lock_guard leaving(context->leaving);
  MemberPtr member;
  {
    const std::lock_guard lock(context->mutex);
    member = std::move(context->member);
    context->was_left = true;
  }
  if (member != nullptr) member->leave();
}

}  // namespace

extern "C" {

uint32_t rueda_abi_version(void) { return RUEDA_ABI_VERSION; }
const char* rueda_version(void) { return RUEDA_VERSION; }
const char* rueda_code_name(int32_t code) {
  return rueda::code_name(static_cast<rueda::Code>(code));
}

void rueda_shutdown(rueda_context* context) {
  // A forked child has neither the thread nor the sockets: the parent's context is left as it is.
  if (context == nullptr || !rueda::c_abi::check_process(context->process).ok()) return;
  if (rueda::engine::Completion::in_callback()) {
    RUEDA_WARN("bindings", "rueda_shutdown in a callback is ignored: it would wait for itself");
    return;
  }
  guarded_value(0, [&] { return leave(context), 0; });
}

rueda_context* rueda_context_retain(rueda_context* context) {
  if (context != nullptr) context->users.fetch_add(1, std::memory_order_relaxed);
  return context;
}

void rueda_context_release(rueda_context* context) {
  if (context == nullptr || !rueda::c_abi::check_process(context->process).ok()) return;
  if (context->users.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (rueda::engine::Completion::in_callback()) {
    RUEDA_WARN(
        "bindings",
        "the last rueda_context_release, in a callback, is ignored: it would wait for itself");
    context->users.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  rueda_shutdown(context);
  delete context;
}

int32_t rueda_rank(const rueda_context* c) {
  return place(c, [](const auto& w) { return w.rank; });
}
int32_t rueda_size(const rueda_context* c) {
  return place(c, [](const auto& w) { return w.size; });
}
int32_t rueda_local_rank(const rueda_context* c) {
  return place(c, [](const auto& w) { return w.local_rank; });
}
int32_t rueda_local_size(const rueda_context* c) {
  return place(c, [](const auto& w) { return w.local_size; });
}
int32_t rueda_cross_rank(const rueda_context* c) {
  return place(c, [](const auto& w) { return w.cross_rank; });
}
int32_t rueda_cross_size(const rueda_context* c) {
  return place(c, [](const auto& w) { return w.cross_size; });
}
int32_t rueda_is_homogeneous(const rueda_context* c) {
  return place(c, [](const auto& w) { return w.homogeneous ? 1 : 0; });
}

int32_t rueda_lost_rank(const rueda_context* context, rueda_lost* lost) {
  return guarded_value(0, [&]() -> int32_t {
    const MemberPtr member = try_use(context);
    if (member == nullptr || lost == nullptr || lost->struct_size < sizeof(size_t)) return 0;
    const bool asks = lost->struct_size >= offsetof(rueda_lost, pid);
    const auto found = member->runtime->lost(asks ? lost->rank : -1);
    if (!found) return 0;
    rueda_lost whole = RUEDA_LOST_INIT;
    whole.rank = found->rank;
    whole.pid = found->pid;
    whole.operations = static_cast<int64_t>(found->operations);
    whole.step = static_cast<int64_t>(found->step);
    whole.cause_is_final = found->cause_is_final != 0 ? 1 : 0;
    const auto copy = [](const std::string& text, char* to, size_t room) {
      const size_t count = std::min(text.size(), room - 1);
      std::memcpy(to, text.data(), count);
      to[count] = '\0';
    };
    copy(found->host.str(), whole.host, sizeof(whole.host));
    copy(found->operation.str(), whole.operation, sizeof(whole.operation));
    copy(found->cause.str(), whole.cause, sizeof(whole.cause));
    // As much as the caller's header knows of.
    whole.struct_size = lost->struct_size;
    std::memcpy(lost, &whole, std::min(whole.struct_size, sizeof(whole)));
    return 1;
  });
}

int64_t rueda_split_rows(int64_t rows, int32_t rank, int32_t size) {
  if (rows < 0 || size < 1 || rank < 0 || rank >= size) return -1;
  return rueda::split_rows(rows, rank, size);
}

int32_t rueda_call_site(rueda_context* context, const char* text) {
  return guarded_value(0, [&]() -> int32_t {
    const MemberPtr member = try_use(context);
    if (member == nullptr || text == nullptr) return 0;
    return static_cast<int32_t>(member->runtime->flight().site(text));
  });
}

int32_t rueda_stack_file(const rueda_context* context, int32_t* signal, int32_t* fd) {
  const MemberPtr member = try_use(context);
  if (member == nullptr || !member->runtime->flight().is_shared()) return RUEDA_FAILED_PRECONDITION;
  const rueda::flight::StackDump stacks = rueda::flight::stack_dump();
  if (signal != nullptr) *signal = stacks.signal;
  if (fd != nullptr) *fd = stacks.fd;
  return stacks.signal != 0 ? RUEDA_OK : RUEDA_FAILED_PRECONDITION;
}

int64_t rueda_counter(const rueda_context* context, const char* name) {
  return guarded_value(int64_t{-1}, [&]() -> int64_t {
    const MemberPtr member = try_use(context);
    return member == nullptr || name == nullptr ? -1 : member->runtime->counter(name);
  });
}

int32_t rueda_counters(const rueda_context* context, int64_t* values, int32_t max_count) {
  constexpr auto kCount = static_cast<int32_t>(std::size(rueda::counters::kValues));
  return guarded_value(-1, [&]() -> int32_t {
    const MemberPtr member = try_use(context);
    if (member == nullptr || (values == nullptr && max_count > 0)) return -1;
    const rueda::counters::Values now = member->runtime->counters();
    for (int32_t i = 0; i < std::min(kCount, max_count); ++i)
      values[i] = now.*rueda::counters::kValues[i].field;
    return kCount;
  });
}

int32_t rueda_stats(rueda_context* context, rueda_stat* stats, int32_t max_count, int32_t reset) {
  return guarded_value(-1, [&]() -> int32_t {
    const MemberPtr member = try_use(context);
    if (member == nullptr || (stats == nullptr && max_count > 0)) return -1;
    const auto now = member->runtime->stats(reset != 0);
    constexpr auto kCount = static_cast<int32_t>(std::size(rueda::stats::kSummary));
    for (int32_t i = 0; i < std::min(kCount, max_count); ++i) {
      const auto& row = rueda::stats::kSummary[i];
      stats[i] = {row.name, now.summary.*row.field};
    }
    return kCount;
  });
}

int32_t rueda_late_ranks(rueda_context* context, int32_t* ranks, double* seconds,
                         int32_t max_count) {
  return guarded_value(-1, [&]() -> int32_t {
    const MemberPtr member = try_use(context);
    if (member == nullptr || ((ranks == nullptr || seconds == nullptr) && max_count > 0)) return -1;
    const auto now = member->runtime->stats(false);
    const auto count = static_cast<int32_t>(now.late.size());
    for (int32_t i = 0; i < std::min(count, max_count); ++i) {
      ranks[i] = now.late[static_cast<size_t>(i)].rank;
      seconds[i] = now.late[static_cast<size_t>(i)].seconds;
    }
    return count;
  });
}

const char* rueda_transport(const rueda_context* context) {
  const MemberPtr member = try_use(context);
  return member == nullptr ? nullptr : member->runtime->transport();
}

const char* rueda_counter_name(int32_t index) {
  if (index < 0 || index >= static_cast<int32_t>(std::size(rueda::counters::kValues)))
    return nullptr;
  return rueda::counters::kValues[index].name;
}

}  // extern "C"
