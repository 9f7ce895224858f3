// Ordered groups come and go. Each change goes through the queue, so that it has its place among
// the calls of the thread that makes it.
#include <utility>

#include "collectives/base/utf8.h"
#include "runtime/engine/runtime.h"

namespace rueda::engine {
namespace {

constexpr size_t kMostReasonBytes = 1024;

}  // namespace

Result<uint32_t> Runtime::open_group(std::string key, std::vector<Rank> ranks, uint32_t site) {
  RUEDA_RETURN_IF_ERROR(queue_->closed());
  RUEDA_ASSIGN_OR_RETURN(const ProcessSetPtr group,
                         sets_.open_group(std::move(key), std::move(ranks)));
  RUEDA_RETURN_IF_ERROR(change_group(group, Request::GroupChange::kOpen, "", site));
  return group->id;
}

Status Runtime::close_group(uint32_t id) {
  RUEDA_ASSIGN_OR_RETURN(const ProcessSetPtr group, sets_.find_own(id));
  if (!group->ordered || !sets_.close_group(group))
    return invalid_argument(group->describe() + " cannot be closed: it is no open group");
  return change_group(group, Request::GroupChange::kClose, "", 0);
}

Status Runtime::abort_group(uint32_t id, std::string reason) {
  RUEDA_ASSIGN_OR_RETURN(const ProcessSetPtr group, sets_.find_own(id));
  if (!group->ordered)
    return invalid_argument(group->describe() + " cannot be ended: it is no open group");
  return change_group(group, Request::GroupChange::kAbort, clean_text(reason, kMostReasonBytes), 0);
}

void Runtime::fail(const Status& cause) {
  const std::string text = clean_text(cause.message(), kMostReasonBytes);
  coordinator_.request_failure(
      internal_error(membership().own_name() + ": " + text).with_rank(membership().rank));
}

Status Runtime::change_group(const ProcessSetPtr& group, Request::GroupChange change,
                             std::string reason, uint32_t site) {
  const auto request = std::make_shared<Request>("change of " + group->describe());
  request->set = group;
  request->group_change = change;
  request->site = site;
  request->announcement.kind = CollectiveKind::kProcessSet;
  request->announcement.layout = std::move(reason);
  RUEDA_RETURN_IF_ERROR(request->claim());
  Request* const change_request = request.get();
  progress_->start({&change_request, 1});
  return {};
}

}  // namespace rueda::engine
