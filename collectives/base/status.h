// Status and Result<T>: how rueda reports what can happen.
//
// Codes are gRPC's, so the border to an rpc is a cast. Programming errors that cannot happen are
// RUEDA_CHECK's business (check.h). No exception crosses a thread, the C ABI or an rpc.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace rueda {

enum class Code : int {
  kOk = 0,
  kCancelled = 1,  // the runtime was shut down before the operation ended
  kUnknown = 2,
  kInvalidArgument = 3,   // wrong on this rank alone; refused at once
  kDeadlineExceeded = 4,  // the wait ended, the operation goes on
  kNotFound = 5,
  kAlreadyExists = 6,  // the name is already in flight on this rank
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,  // ranks disagree, or the runtime is in the wrong state
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,  // a peer is lost; the message names it
  kDataLoss = 15,
  kUnauthenticated = 16,
};

const char* code_name(Code code);

// A code and a message for the person who reads it: what, which rank, which tensor, what to do.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status ok_status() { return {}; }
  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  // "unavailable: rank 3 (pid 81, host b) was lost"
  std::string to_string() const;

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status invalid_argument(std::string m) { return {Code::kInvalidArgument, std::move(m)}; }
inline Status failed_precondition(std::string m) {
  return {Code::kFailedPrecondition, std::move(m)};
}
inline Status unavailable(std::string m) { return {Code::kUnavailable, std::move(m)}; }
inline Status internal_error(std::string m) { return {Code::kInternal, std::move(m)}; }
inline Status deadline_exceeded(std::string m) { return {Code::kDeadlineExceeded, std::move(m)}; }
inline Status cancelled(std::string m) { return {Code::kCancelled, std::move(m)}; }
// "what: strerror(err)", with the code that fits: kUnavailable when the other side of a connection
// is gone.
Status errno_status(const std::string& what, int err);

// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit on purpose
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  T& operator*() { return *value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace rueda

#define RUEDA_RETURN_IF_ERROR(expr)                \
  do {                                             \
    ::rueda::Status rueda_status_ = (expr);        \
    if (!rueda_status_.ok()) return rueda_status_; \
  } while (false)

#define RUEDA_CONCAT_INNER(a, b) a##b
#define RUEDA_CONCAT(a, b) RUEDA_CONCAT_INNER(a, b)
// RUEDA_ASSIGN_OR_RETURN(auto value, make_value());
#define RUEDA_ASSIGN_OR_RETURN(decl, expr) \
  RUEDA_ASSIGN_OR_RETURN_INNER(RUEDA_CONCAT(rueda_result_, __LINE__), decl, expr)
#define RUEDA_ASSIGN_OR_RETURN_INNER(tmp, decl, expr) \
  auto tmp = (expr);                                  \
  if (!tmp.ok()) return tmp.status();                 \
  decl = std::move(tmp).value()
