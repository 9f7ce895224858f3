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

std::string Status::to_string() const {
  if (ok()) return "ok";
  return std::string(code_name(code_)) + ": " + message_;
}

namespace {

// What there is of that which was not enough.
std::string available(int err) {
  struct rlimit limit = {};
  if (err == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    return "; this process may have " + std::to_string(limit.rlim_cur) +
           " descriptors open (ulimit -n)";
  }
  if (err == ENFILE) return "; the host's table of open files is full (/proc/sys/fs/file-max)";
  if (err == EFBIG && getrlimit(RLIMIT_FSIZE, &limit) == 0) {
    return "; a file or shared memory may have " + std::to_string(limit.rlim_cur) +
           " bytes (ulimit -f)";
  }
  if (err != ENOMEM && err != ENOSPC) return "";
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
  if (err == ENOMEM || err == EMFILE || err == ENFILE || err == ENOSPC || err == EFBIG)
    code = Code::kResourceExhausted;
  if (err == EACCES || err == EPERM) code = Code::kPermissionDenied;
  if (err == EPIPE || err == ECONNRESET) code = Code::kUnavailable;  // the other side is gone
  char text[128];
  return {code, what + ": " + strerror_r(err, text, sizeof(text)) + available(err)};
}

}  // namespace rueda
