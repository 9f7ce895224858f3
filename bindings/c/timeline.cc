// The timeline's doors.
#include "bindings/c/context.h"
#include "proto/limits.h"

using rueda::Status;
using rueda::c_abi::guarded;
using rueda::c_abi::use;

extern "C" {

int32_t rueda_start_timeline(rueda_context* context, const char* path, int32_t mark_cycles,
                             rueda_error* error) {
  return guarded(error, [&]() -> Status {
    RUEDA_ASSIGN_OR_RETURN(const auto member, use(context));
    if (path == nullptr) return rueda::invalid_argument("the timeline's file has no name (NULL)");
    return member->runtime->start_timeline(path, mark_cycles != 0);
  });
}

int32_t rueda_stop_timeline(rueda_context* context, rueda_error* error) {
  return guarded(error, [&]() -> Status {
    RUEDA_ASSIGN_OR_RETURN(const auto member, use(context));
    member->runtime->stop_timeline();
    return {};
  });
}

int32_t rueda_mark(rueda_context* context, const char* name, int32_t what) {
  return guarded(nullptr, [&]() -> Status {
    RUEDA_ASSIGN_OR_RETURN(const auto member, use(context));
    if (name == nullptr || what < 0 || what > 2)
      return rueda::invalid_argument("a mark has a name and begins (0), ends (1) or happens (2)");
    member->runtime->mark(std::string(name).substr(0, rueda::wire::kMaxNameBytes),
                          static_cast<rueda::timeline::Mark>(what));
    return {};
  });
}

}  // extern "C"
