// Process sets behind the C ABI.
#include <algorithm>
#include <vector>

#include "bindings/c/context.h"

using rueda::Result;
using rueda::Status;
using rueda::c_abi::guarded_value;
using rueda::engine::RequestPtr;

namespace {

// Starts a change; its handle is made first, since after the start nothing may fail.
template <typename Start>
int32_t change(rueda_context* context, rueda_request** request, rueda_error* error, Start start) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    if (request == nullptr) return rueda::invalid_argument("nowhere to put the request (NULL)");
    RUEDA_ASSIGN_OR_RETURN(const auto member, rueda::c_abi::use(context));
    auto handle = rueda::c_abi::make_handle();
    RUEDA_ASSIGN_OR_RETURN(auto started, start(member->runtime.get()));
    rueda::c_abi::fill(handle.get(), std::move(started));
    *request = handle.release();
    return {};
  });
}

uint32_t site_of(int32_t call_site) { return call_site > 0 ? static_cast<uint32_t>(call_site) : 0; }

template <typename From>
int32_t give(const std::vector<From>& from, int32_t* to, int32_t max_count) {
  if (to != nullptr) {
    const size_t count = std::min(from.size(), static_cast<size_t>(std::max(max_count, 0)));
    for (size_t i = 0; i < count; ++i) to[i] = static_cast<int32_t>(from[i]);
  }
  return static_cast<int32_t>(from.size());
}

}  // namespace

extern "C" {

int32_t rueda_add_process_set(rueda_context* context, const int32_t* ranks, int32_t count,
                              int32_t call_site, rueda_request** request, rueda_error* error) {
  return change(context, request, error,
                [&](rueda::engine::Runtime* runtime) -> Result<RequestPtr> {
                  if (count < 0 || (ranks == nullptr && count > 0))
                    return rueda::invalid_argument("add_process_set: no ranks (NULL)");
                  std::vector<int64_t> list;
                  if (count > 0) list.assign(ranks, ranks + count);
                  return runtime->add_process_set(std::move(list), site_of(call_site));
                });
}

int32_t rueda_remove_process_set(rueda_context* context, int32_t process_set, int32_t call_site,
                                 rueda_request** request, rueda_error* error) {
  return change(
      context, request, error, [&](rueda::engine::Runtime* runtime) -> Result<RequestPtr> {
        if (process_set < 0)
          return rueda::invalid_argument("process set " + std::to_string(process_set) +
                                         " does not exist");
        return runtime->remove_process_set(static_cast<uint32_t>(process_set), site_of(call_site));
      });
}

int32_t rueda_process_sets(const rueda_context* context, int32_t* ids, int32_t max_count) {
  return guarded_value(-1, [&]() -> int32_t {
    const auto member = rueda::c_abi::try_use(context);
    if (member == nullptr) return -1;
    std::vector<uint32_t> known;
    for (const auto& set : member->runtime->process_sets().all()) known.push_back(set->id);
    return give(known, ids, max_count);
  });
}

int32_t rueda_process_set_ranks(const rueda_context* context, int32_t process_set, int32_t* ranks,
                                int32_t max_count) {
  return guarded_value(-1, [&]() -> int32_t {
    const auto member = rueda::c_abi::try_use(context);
    if (member == nullptr || process_set < 0) return -1;
    const auto set = member->runtime->process_sets().find(static_cast<uint32_t>(process_set));
    return set.ok() ? give(set.value()->ranks, ranks, max_count) : -1;
  });
}

}  // extern "C"
