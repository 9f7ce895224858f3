#include "collectives/base/status.h"

#include <cstring>

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

std::string Status::to_string() const {
  if (ok()) return "ok";
  return std::string(code_name(code_)) + ": " + message_;
}

Status errno_status(const std::string& what, int err) {
  Code code = Code::kInternal;
  if (err == ENOMEM || err == EMFILE || err == ENFILE || err == ENOSPC)
    code = Code::kResourceExhausted;
  if (err == EACCES || err == EPERM) code = Code::kPermissionDenied;
  char text[128];
  return {code, what + ": " + strerror_r(err, text, sizeof(text))};
}

}  // namespace rueda
