// should_stop: all ranks hear of a signal at the same call.
#include "bindings/c/context.h"
#include "collectives/base/signal_names.h"
#include "runtime/observe/life/preemption.h"

using rueda::Status;

namespace {

Status ask(rueda::c_abi::Member* member, int32_t* stop) {
  if (!member->stop_agreed) {
    if (!member->listens) {
      RUEDA_ASSIGN_OR_RETURN(const std::vector<int> signals,
                             rueda::parse_signals(member->preemption_signals));
      rueda::life::note_signals(signals);
      member->listens = true;
    }
    RUEDA_ASSIGN_OR_RETURN(const int64_t most, member->stop.ask(member->runtime.get(), [] {
      return rueda::life::stop_was_asked() ? 1 : 0;
    }));
    if (most != 0) member->stop_agreed = true;
  }
  *stop = member->stop_agreed ? 1 : 0;
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
