#include "collectives/base/status.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace rueda {

const char* code_name(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kCancelled: return "cancelled";
    case Code::kUnknown: return "unknown";
    case Code::kInvalidArgument: return "invalid argument";
    case Code::kDeadlineExceeded: return "deadline exceeded";
    case Code::kNotFound: return "not found";
    case Code::kAlreadyExists: return "already exists";
    case Code::kPermissionDenied: return "permission denied";
    case Code::kResourceExhausted: return "resource exhausted";
    case Code::kFailedPrecondition: return "failed precondition";
    case Code::kAborted: return "aborted";
    case Code::kOutOfRange: return "out of range";
    case Code::kUnimplemented: return "unimplemented";
    case Code::kInternal: return "internal";
    case Code::kUnavailable: return "unavailable";
    case Code::kDataLoss: return "data loss";
    case Code::kUnauthenticated: return "unauthenticated";
  }
  return "unknown code";
}

Status::Status(Code code, std::string message, Facts facts)
    : code_(code),
      error_(std::make_shared<const Error>(Error{std::move(message), std::move(facts)})) {}

const std::string& Status::message() const {
  static const std::string none;
  return error_ ? error_->message : none;
}

const Facts& Status::facts() const {
  static const Facts none;
  return error_ ? error_->facts : none;
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  return std::string(code_name(code_)) + ": " + message();
}

template <typename Change>
Status Status::changed(Change change) const {
  if (ok()) return *this;
  Error error{message(), facts()};
  change(&error);
  return Status(code_, std::move(error.message), std::move(error.facts));
}

Status Status::with_message(std::string message) const {
  return changed([&](Error* error) { error->message = std::move(message); });
}

Status Status::with_rank(Rank rank) const {
  return changed([&](Error* error) { error->facts.rank = rank; });
}

Status Status::with_host(std::string host) const {
  return changed([&](Error* error) { error->facts.host = std::move(host); });
}

Status Status::with_limit(Limit limit) const {
  return changed([&](Error* error) { error->facts.limit = limit; });
}

Status Status::with_met(Met met) const {
  return changed([&](Error* error) { error->facts.met = met; });
}

Status Status::naming_operation() const {
  return changed([](Error* error) { error->facts.names_operation = true; });
}

namespace {

Limit limit_of(int err) {
  switch (err) {
    case EMFILE: return Limit::kDescriptors;
    case ENFILE: return Limit::kOpenFiles;
    case EFBIG: return Limit::kFileSize;
    case ENOMEM:
    case ENOSPC: return Limit::kMemory;
    default: return Limit::kNone;
  }
}

// What there is of that which was not enough.
std::string available(Limit of) {
  struct rlimit limit = {};
  if (of == Limit::kDescriptors && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    return "; this process may have " + std::to_string(limit.rlim_cur) +
           " descriptors open (ulimit -n)";
  }
  if (of == Limit::kOpenFiles)
    return "; the host's table of open files is full (/proc/sys/fs/file-max)";
  if (of == Limit::kFileSize && getrlimit(RLIMIT_FSIZE, &limit) == 0) {
    return "; a file or shared memory may have " + std::to_string(limit.rlim_cur) +
           " bytes (ulimit -f)";
  }
  if (of != Limit::kMemory) return "";
  std::ifstream file("/proc/meminfo");
  std::string text;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("MemAvailable:"))
      text = "; this host has " + line.substr(line.find_first_not_of(' ', 13)) + " available";
  }
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    text += "; this process may map " + std::to_string(limit.rlim_cur) + " bytes (ulimit -v)";
  return text;
}

}  // namespace

Status errno_status(const std::string& what, int err) {
  Code code = Code::kInternal;
  const Limit limit = limit_of(err);
  if (limit != Limit::kNone) code = Code::kResourceExhausted;
  if (err == EACCES || err == EPERM) code = Code::kPermissionDenied;
  if (err == EPIPE || err == ECONNRESET) code = Code::kUnavailable;  // the other side is gone
  char text[128];
  return Status(code, what + ": " + strerror_r(err, text, sizeof(text)) + available(limit))
      .with_limit(limit);
}

}  // namespace rueda
