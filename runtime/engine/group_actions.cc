// What a group's agreement asks for, done one by one.
#include <algorithm>
#include <utility>

#include "collectives/base/log.h"
#include "collectives/host/monotonic.h"
#include "runtime/engine/group_engine.h"
#include "runtime/engine/neutral.h"

namespace rueda::engine {

namespace action = negotiation::action;
namespace event = negotiation::event;

// True if there was anything. Performing one may bring more.
bool GroupEngine::perform() {
  bool any = false;
  while (!negotiator_.actions().empty()) {
    any = true;
    doing_.swap(negotiator_.actions());
    for (negotiation::Action& next : doing_)
      std::visit([this](auto& what) { perform(what); }, next);
    doing_.clear();
  }
  return any;
}

void GroupEngine::perform(action::Send& send) {
  const auto to = [&](size_t place, std::string message) {
    shared_.fabric->transport->send_control(set_->ranks[place], std::move(message));
  };
  if (send.to != action::Send::kEveryone)
    return to(static_cast<size_t>(send.to), std::move(send.message));
  for (size_t place = 0; place < set_->ranks.size(); ++place) {
    if (static_cast<Rank>(place) != *set_->place) to(place, send.message);
  }
}

void GroupEngine::perform(action::Launch& launch) {
  std::vector<Request*> members;
  const int64_t now = host::monotonic_ns();
  for (const action::Member& member : launch.members) {
    if (member.neutral != nullptr) {
      members.push_back(make_neutral(*member.neutral, set_).get());
      members.back()->since = std::chrono::steady_clock::now();
    } else {
      members.push_back(take_back(member.handle));
    }
    shared_.flight->agreed(members.back()->flight, now);
  }
  const wire::Response& batch = launch.batch;
  if (batch.kind == CollectiveKind::kProcessSet) {
    for (Request* change : members) agree_on_change(change);
    return;
  }
  if (batch.kind == CollectiveKind::kJoin) {
    const auto last = static_cast<size_t>(batch.last_joined);
    for (Request* join : members) {
      join->set_result(last < set_->ranks.size() ? set_->ranks[last] : -1);
      shared_.finisher->finish(join, {});
    }
    return;
  }
  look_for_cma();
  shared_.round_mark->batch_begins();
  executor_.launch(batch, std::move(members), launch.sizes);
}

void GroupEngine::agree_on_change(Request* change) {
  news_.change = AgreedChange{change, std::nullopt};
  // Here and not later: all ranks are at this point of the response stream.
  if (change->announcement.root < 0) news_.change->split = device_communicator_.reserve();
  has_news_ = true;
}

void GroupEngine::perform(action::Finish& end) { finish(end.handle, end.status); }

void GroupEngine::perform(action::Asked& asked) {
  auto* const request = asked.handle.as<Request>();
  if (request->flight == 0) {
    request->flight =
        shared_.flight->submitted(request->announcement, set_->id, request->site,
                                  asked.by_id ? flight::Path::kCached : flight::Path::kNegotiated);
  } else if (asked.by_id) {
    shared_.flight->cached(request->flight);
  }
}

void GroupEngine::perform(action::Hold& held) {
  auto* const request = held.handle.as<Request>();
  const bool awaited = request->mark_may_batch();
  hold(request);
  if (!awaited) return;
  negotiator_.on(event::Awaited{request->announcement.name});
  news_.blocked_already = has_news_ = true;
}

void GroupEngine::perform(action::Note& note) {
  const std::string known = shared_.flight->mail();
  note.handle.as<Request>()->set_note(note.text + (known.empty() ? "" : "\n" + known));
}

// That other members leave a set which is removed is nobody's fault.
void GroupEngine::perform(action::Blame& blame) {
  if (leaving_ && set_->id != 0) return;
  if (blame.has_left) shared_.finisher->misses_somebody();
  shared_.finisher->blame(blame.text);
}

void GroupEngine::perform(action::Warn& warn) {
  if (set_->id == 0) {
    RUEDA_WARN("coordinator", "{}", warn.text);
  } else {
    RUEDA_WARN("coordinator", "{}: {}", set_->describe(), warn.text);
  }
}

void GroupEngine::perform(action::AskSites& ask) {
  event::Sites answer{{}, std::chrono::steady_clock::now()};
  for (const action::AskSites::Question& question : ask.questions) {
    const uint32_t site = question.handle.as<Request>()->site;
    answer.sites.push_back({question.name, shared_.flight->site_text(site)});
  }
  negotiator_.on(answer);
}

void GroupEngine::perform(action::Arrived& arrived) {
  const timeline::Nanos now = timeline::nanos(arrived.now);
  if (shared_.recorder->on() && arrived.request->kind != CollectiveKind::kProcessSet) {
    shared_.recorder->arrival(*arrived.request, set_->id,
                              set_->ranks[static_cast<size_t>(arrived.rank)], now);
  }
  if (arrived.last) late_.decided(arrived.rank, timeline::nanos(arrived.before), now);
}

void GroupEngine::perform(action::GiveUp& end) { fail(end.verdict); }

void GroupEngine::perform(action::BeginPlan& begin) {
  std::vector<const wire::Request*> requests;
  for (const negotiation::RequestPtr& request : begin.requests) requests.push_back(request.get());
  executor_.begin_plan(begin.plan, requests, begin.sizes);
}

void GroupEngine::perform(action::EnterBatch& enter) { executor_.enter(enter.handles); }

void GroupEngine::perform(action::RevokePlan& revoke) { executor_.revoke(revoke.last_word); }

void GroupEngine::perform(action::EndPlan& end) {
  const std::vector<plan::OpHandle> handles = executor_.end_plan(end.first);
  negotiator_.on(event::Withdrawn{handles, std::chrono::steady_clock::now()});
}

}  // namespace rueda::engine
