// The users' keys in the store that the job's launcher keeps.
#include <algorithm>
#include <cstring>
#include <string>

#include "bindings/c/context.h"
#include "runtime/rendezvous/store_client.h"

using rueda::Status;
using rueda::rendezvous::StoreClient;

namespace {

// fn(StoreClient&)
template <typename Function>
int32_t with_store(rueda_context* context, const char* key, rueda_error* error, Function fn) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    if (key == nullptr) return rueda::invalid_argument("no key (NULL)");
    RUEDA_ASSIGN_OR_RETURN(const auto member, rueda::c_abi::use(context));
    if (member->store == nullptr) {
      return rueda::failed_precondition(
          "nobody keeps a store for this job: start it with ruedarun, from two ranks on");
    }
    return fn(*member->store);
  });
}

rueda::Result<std::string> text(const void* value, size_t bytes) {
  if (value == nullptr && bytes > 0) return rueda::invalid_argument("no value (NULL)");
  return bytes == 0 ? std::string() : std::string(static_cast<const char*>(value), bytes);
}

// As much as there is room for; *bytes is all.
Status put(const std::string& found, void* value, size_t room, size_t* bytes) {
  if (bytes == nullptr) return rueda::invalid_argument("nowhere to put the value's size (NULL)");
  *bytes = found.size();
  const size_t fits = value == nullptr ? 0 : std::min(room, found.size());
  if (fits > 0) std::memcpy(value, found.data(), fits);
  return {};
}

}  // namespace

extern "C" {

int32_t rueda_store_set(rueda_context* context, const char* key, const void* value, size_t bytes,
                        rueda_error* error) {
  return with_store(context, key, error, [&](StoreClient& store) -> Status {
    RUEDA_ASSIGN_OR_RETURN(const std::string given, text(value, bytes));
    return store.put(key, given);
  });
}

int32_t rueda_store_get(rueda_context* context, const char* key, double timeout_seconds,
                        void* value, size_t room, size_t* bytes, rueda_error* error) {
  return with_store(context, key, error, [&](StoreClient& store) -> Status {
    const auto timeout = rueda::c_abi::to_nanoseconds(timeout_seconds);
    RUEDA_ASSIGN_OR_RETURN(const std::string found,
                           store.get_user(key, timeout.count() < 0 ? timeout.max() : timeout));
    return put(found, value, room, bytes);
  });
}

int32_t rueda_store_add(rueda_context* context, const char* key, int64_t amount, int64_t* sum,
                        rueda_error* error) {
  return with_store(context, key, error, [&](StoreClient& store) -> Status {
    RUEDA_ASSIGN_OR_RETURN(const int64_t now, store.add(key, amount));
    if (sum != nullptr) *sum = now;
    return {};
  });
}

int32_t rueda_store_compare_set(rueda_context* context, const char* key, const void* expected,
                                size_t expected_bytes, const void* desired, size_t desired_bytes,
                                int32_t* is_set, void* value, size_t room, size_t* bytes,
                                rueda_error* error) {
  return with_store(context, key, error, [&](StoreClient& store) -> Status {
    RUEDA_ASSIGN_OR_RETURN(const std::string wanted, text(expected, expected_bytes));
    RUEDA_ASSIGN_OR_RETURN(const std::string given, text(desired, desired_bytes));
    RUEDA_ASSIGN_OR_RETURN(const auto held, store.compare_set(key, wanted, given));
    if (is_set != nullptr) *is_set = held.is_set ? 1 : 0;
    return put(held.value, value, room, bytes);
  });
}

int32_t rueda_store_erase(rueda_context* context, const char* key, int32_t* was_set,
                          rueda_error* error) {
  return with_store(context, key, error, [&](StoreClient& store) -> Status {
    RUEDA_ASSIGN_OR_RETURN(const bool was, store.erase(key));
    if (was_set != nullptr) *was_set = was ? 1 : 0;
    return {};
  });
}

}  // extern "C"
