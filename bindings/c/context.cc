#include "bindings/c/context.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "collectives/host/fork_guard.h"
#include "runtime/observe/counters/counters.h"
#include "runtime/observe/flight/stack_dump.h"

namespace rueda::c_abi {

int32_t report(const Status& status, rueda_error* error) {
  if (error != nullptr && error->struct_size >= offsetof(rueda_error, message) + 1) {
    error->code = static_cast<int32_t>(status.code());
    const size_t room = error->struct_size - offsetof(rueda_error, message) - 1;
    const size_t count = std::min({status.message().size(), room, sizeof(error->message) - 1});
    std::memcpy(error->message, status.message().data(), count);
    error->message[count] = '\0';
  }
  return static_cast<int32_t>(status.code());
}

Status check(const rueda_context* context) {
  if (context == nullptr)
    return failed_precondition("rueda has not been initialized on this rank: call init first");
  return check_process(context->process);
}

Status check_process(uint64_t process) {
  if (process == host::fork_generation()) return {};
  return failed_precondition(
      "this process was forked from a rank of rueda and is none itself: call rueda only in the "
      "process that called init, or start the child with spawn");
}

}  // namespace rueda::c_abi

using rueda::c_abi::check;

namespace {

template <typename Get>
int32_t place(const rueda_context* context, Get get) {
  return check(context).ok() ? get(context->runtime->world()) : -1;
}

}  // namespace

extern "C" {

uint32_t rueda_abi_version(void) { return RUEDA_ABI_VERSION; }
const char* rueda_version(void) { return RUEDA_VERSION; }
const char* rueda_code_name(int32_t code) {
  return rueda::code_name(static_cast<rueda::Code>(code));
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
  if (!check(context).ok() || lost == nullptr || lost->struct_size < sizeof(rueda_lost)) return 0;
  const auto found = context->runtime->lost();
  if (!found) return 0;
  lost->rank = found->rank;
  lost->pid = found->pid;
  lost->operations = static_cast<int64_t>(found->operations);
  lost->step = static_cast<int64_t>(found->step);
  lost->cause_is_final = found->cause_is_final != 0 ? 1 : 0;
  const auto copy = [](const std::string& text, char* to, size_t room) {
    const size_t count = std::min(text.size(), room - 1);
    std::memcpy(to, text.data(), count);
    to[count] = '\0';
  };
  copy(found->host.str(), lost->host, sizeof(lost->host));
  copy(found->operation.str(), lost->operation, sizeof(lost->operation));
  copy(found->cause.str(), lost->cause, sizeof(lost->cause));
  return 1;
}

int64_t rueda_split_rows(int64_t rows, int32_t rank, int32_t size) {
  if (rows < 0 || size < 1 || rank < 0 || rank >= size) return -1;
  return rueda::split_rows(rows, rank, size);
}

int32_t rueda_call_site(rueda_context* context, const char* text) {
  if (!check(context).ok() || text == nullptr) return 0;
  try {
    return static_cast<int32_t>(context->runtime->flight().site(text));
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

int32_t rueda_stack_file(const rueda_context* context, int32_t* signal, int32_t* fd) {
  if (!check(context).ok() || !context->runtime->flight().is_shared())
    return RUEDA_FAILED_PRECONDITION;
  const rueda::flight::StackDump stacks = rueda::flight::stack_dump();
  if (signal != nullptr) *signal = stacks.signal;
  if (fd != nullptr) *fd = stacks.fd;
  return stacks.signal != 0 ? RUEDA_OK : RUEDA_FAILED_PRECONDITION;
}

int64_t rueda_counter(const rueda_context* context, const char* name) {
  if (!check(context).ok() || name == nullptr) return -1;
  return context->runtime->counter(name);
}

int32_t rueda_counters(const rueda_context* context, int64_t* values, int32_t max_count) {
  constexpr auto kCount = static_cast<int32_t>(std::size(rueda::counters::kValues));
  if (!check(context).ok() || (values == nullptr && max_count > 0)) return -1;
  const rueda::counters::Values now = context->runtime->counters();
  for (int32_t i = 0; i < std::min(kCount, max_count); ++i)
    values[i] = now.*rueda::counters::kValues[i].field;
  return kCount;
}

const char* rueda_counter_name(int32_t index) {
  if (index < 0 || index >= static_cast<int32_t>(std::size(rueda::counters::kValues)))
    return nullptr;
  return rueda::counters::kValues[index].name;
}

}  // extern "C"
