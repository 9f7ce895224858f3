// Status and Result<T>: how rueda reports what can happen.
//
// Codes are gRPC's, so the border to an rpc is a cast. The text is for people: what code decides by
// is the code and the facts. Programming errors that cannot happen are RUEDA_CHECK's business
// (check.h). No exception crosses a thread, the C ABI or an rpc.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "collectives/base/types.h"

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

// Which of the system's limits was in the way.
enum class Limit : uint8_t {
  kNone,
  kDescriptors,  // of this process: ulimit -n
  kOpenFiles,    // of the host
  kFileSize,     // ulimit -f
  kMemory,       // of the host, of a file system in memory, or ulimit -v
  kDisk,         // a file system is full, or a quota on it used up
};

// A message that ended another, with which it did not agree: what it was.
struct Met {
  uint64_t bytes = 0;
  uint16_t meta = 0;  // transport.h
};

// What an error is about. Who makes the error sets what it knows; who rewords it keeps them.
struct Facts {
  Rank rank = -1;    // of the job: lost, gone, missing or different; -1: no single one
  std::string host;  // that rank's; "": not known
  Limit limit = Limit::kNone;
  bool names_operation = false;  // the text says already for which operation it is
  std::optional<Met> met;        // of a message
};

// A code and a message for the person who reads it: what, which rank, which tensor, what to do.
//
// An ok status owns nothing; copies of an error share its text and facts, which never change.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message, Facts facts = {});

  static Status ok_status() { return {}; }
  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const;
  const Facts& facts() const;
  // "unavailable: rank 3 (pid 81, host b) was lost"
  std::string to_string() const;

  // The same error with one thing more or different. An ok status stays as it is.
  Status with_message(std::string message) const;
  Status with_rank(Rank rank) const;
  Status with_host(std::string host) const;
  Status with_limit(Limit limit) const;
  Status with_met(Met met) const;
  Status naming_operation() const;

 private:
  struct Error {
    std::string message;
    Facts facts;
  };
  template <typename Change>
  Status changed(Change change) const;

  Code code_ = Code::kOk;
  std::shared_ptr<const Error> error_;  // null: no text, no facts
};

inline Status invalid_argument(std::string m) { return {Code::kInvalidArgument, std::move(m)}; }
inline Status failed_precondition(std::string m) {
  return {Code::kFailedPrecondition, std::move(m)};
}
inline Status unavailable(std::string m) { return {Code::kUnavailable, std::move(m)}; }
inline Status internal_error(std::string m) { return {Code::kInternal, std::move(m)}; }
inline Status deadline_exceeded(std::string m) { return {Code::kDeadlineExceeded, std::move(m)}; }
inline Status cancelled(std::string m) { return {Code::kCancelled, std::move(m)}; }
// "what: strerror(err)", with the code and the limit that fit: kUnavailable when the other side of
// a connection is gone.
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
