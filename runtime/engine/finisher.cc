#include "runtime/engine/finisher.h"

#include <utility>

#include "collectives/host/monotonic.h"
#include "runtime/engine/batch.h"
#include "runtime/engine/process_set.h"

namespace rueda::engine {
namespace {

// What the root says of an operation names it, and stays as it is, so that ranks which asked for
// different kinds read the same text; it does not name the process set. A join and a change of the
// sets have no name that anybody would look for.
std::string with_title(const Request& request, const Status& status) {
  const CollectiveKind kind = request.announcement.kind;
  const bool nameless = kind == CollectiveKind::kJoin || kind == CollectiveKind::kProcessSet;
  const bool in_all_ranks = request.set == nullptr || request.set->id == 0 || request.set->ordered;
  if (nameless || (status.facts().names_operation && in_all_ranks)) return status.message();
  return request.title() + ": " + status.message();
}

}  // namespace

std::string Finisher::who_left(const Status& status) const {
  const bool by_a_peer = status.code() == Code::kUnavailable || status.code() == Code::kCancelled;
  const Rank about = status.facts().rank;
  if (!by_a_peer || about < 0 || first_to_leave_.rank < 0 || about == first_to_leave_.rank)
    return "";
  return " (the first to leave was " + first_to_leave_.name + ")";
}

void Finisher::finish(Request* request, const Status& status) {
  if (request->flight != 0) flight_->ended(request->flight, host::monotonic_ns(), status.ok());
  queue_->release(request);
  if (status.ok()) {
    request->end({});
  } else {
    request->end(status.with_message(with_title(*request, status) + who_left(status)));
  }
}

void Finisher::count_message(const Request& request) {
  flight_->stats().message_ended(request.announcement.kind, bytes_of(request.announcement));
}

void Finisher::blame(const std::string& text) {
  if (blame_) std::exchange(blame_, {})(text);
}

}  // namespace rueda::engine
