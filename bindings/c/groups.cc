// Ordered groups behind the C ABI.
#include <string>
#include <vector>

#include "bindings/c/context.h"

using rueda::Status;
using rueda::c_abi::guarded;

static_assert(RUEDA_FIRST_GROUP == rueda::engine::ProcessSetTable::kFirstGroup);

extern "C" {

int32_t rueda_open_group(rueda_context* context, const char* key, const int32_t* ranks,
                         int32_t count, int32_t call_site, int32_t* group, rueda_error* error) {
  return guarded(error, [&]() -> Status {
    if (key == nullptr || group == nullptr || count < 1 || ranks == nullptr)
      return rueda::invalid_argument("open_group: no key, no ranks, or nowhere to put the group");
    RUEDA_ASSIGN_OR_RETURN(const auto member, rueda::c_abi::use(context));
    RUEDA_ASSIGN_OR_RETURN(
        const uint32_t opened,
        member->runtime->open_group(key, {ranks, ranks + count},
                                    call_site > 0 ? static_cast<uint32_t>(call_site) : 0));
    *group = static_cast<int32_t>(opened);
    return {};
  });
}

int32_t rueda_close_group(rueda_context* context, int32_t group, rueda_error* error) {
  return guarded(error, [&]() -> Status {
    RUEDA_ASSIGN_OR_RETURN(const auto member, rueda::c_abi::use(context));
    return member->runtime->close_group(static_cast<uint32_t>(group));
  });
}

int32_t rueda_abort_group(rueda_context* context, int32_t group, const char* reason,
                          rueda_error* error) {
  return guarded(error, [&]() -> Status {
    RUEDA_ASSIGN_OR_RETURN(const auto member, rueda::c_abi::use(context));
    return member->runtime->abort_group(static_cast<uint32_t>(group),
                                        reason != nullptr ? reason : "no reason given");
  });
}

}  // extern "C"
