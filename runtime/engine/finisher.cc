#include "runtime/engine/finisher.h"

#include <algorithm>
#include <utility>

namespace rueda::engine {
namespace {

// A message that names the tensor stays as it is, so that ranks which asked for different kinds
// read the same text.
std::string with_title(const Completion& request, const Status& status) {
  const std::string& title = request.title();
  if (status.message().find(title.substr(std::min(title.find('\''), title.size()))) !=
      std::string::npos) {
    return status.message();
  }
  return title + ": " + status.message();
}

}  // namespace

std::string Finisher::who_left(const Status& status) const {
  const bool by_a_peer = status.code() == Code::kUnavailable || status.code() == Code::kCancelled;
  if (!by_a_peer || first_to_leave_.empty() ||
      status.message().find(first_to_leave_) != std::string::npos) {
    return "";
  }
  return " (the first to leave was " + first_to_leave_ + ")";
}

void Finisher::finish(Request* request, const Status& status) {
  if (request->flight != 0) flight_->ended(request->flight, flight::now_ns(), status.ok());
  queue_->release(request);
  if (status.ok()) {
    request->end({});
  } else {
    request->end({status.code(), with_title(*request, status) + who_left(status)});
  }
}

void Finisher::blame(const std::string& text) {
  if (blame_) std::exchange(blame_, {})(text);
}

}  // namespace rueda::engine
