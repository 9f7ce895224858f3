// should_stop: one small agreed maximum per call, so that all ranks hear of a signal at the same
// call.
#include "bindings/c/context.h"
#include "collectives/base/signal_names.h"
#include "runtime/observe/life/preemption.h"

using rueda::Status;

namespace {

rueda::engine::Operation vote() {
  rueda::engine::Operation operation;
  operation.kind = rueda::CollectiveKind::kAllreduce;
  operation.name = "rueda.should_stop";
  operation.dtype = rueda::DType::kInt32;
  operation.reduce_op = rueda::ReduceOp::kMax;
  operation.shape = {1};
  return operation;
}

Status ask(rueda::c_abi::Member* member, int32_t* stop) {
  rueda::c_abi::StopVote& mine = member->stop;
  const std::lock_guard lock(mine.mutex);
  if (mine.agreed) return *stop = 1, Status();
  if (mine.request == nullptr) {
    RUEDA_ASSIGN_OR_RETURN(const std::vector<int> signals,
                           rueda::parse_signals(member->preemption_signals));
    rueda::life::note_signals(signals);
    RUEDA_ASSIGN_OR_RETURN(auto made, member->runtime->make({vote()}));
    mine.request = std::move(made.front());
  }
  if (!mine.under_way) {
    mine.value = rueda::life::stop_was_asked() ? 1 : 0;
    auto* const bytes = reinterpret_cast<std::byte*>(&mine.value);
    RUEDA_RETURN_IF_ERROR(mine.request->start(bytes, bytes));
    mine.under_way = true;
  }
  const Status ended = mine.request->wait(std::chrono::nanoseconds(-1));
  if (ended.code() == rueda::Code::kAborted) return ended;  // a signal; the next call goes on
  mine.under_way = false;
  RUEDA_RETURN_IF_ERROR(ended);
  mine.agreed = mine.value != 0;
  *stop = mine.agreed ? 1 : 0;
  return {};
}

}  // namespace

extern "C" int32_t rueda_should_stop(rueda_context* context, int32_t* stop, rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    RUEDA_ASSIGN_OR_RETURN(const auto member, rueda::c_abi::use(context));
    if (stop == nullptr) return rueda::invalid_argument("nowhere to put the answer (NULL)");
    *stop = 0;
    return ask(member.get(), stop);
  });
}
