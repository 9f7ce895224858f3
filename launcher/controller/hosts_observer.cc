#include "launcher/controller/hosts_observer.h"

#include <algorithm>
#include <tuple>

#include "collectives/host/monotonic.h"
#include "launcher/hosts/report_wire.h"
#include "launcher/job/exit_report.h"
#include "launcher/observe/metrics_pages.h"
#include "launcher/observe/recorder_files.h"
#include "launcher/observe/vitals_json.h"

namespace rueda::launcher {
namespace {

constexpr std::chrono::seconds kLookEvery{1};
// Until hosts have answered: without stacks, with them (a second for each), with everything.
constexpr std::chrono::seconds kLookLimit{3};
constexpr std::chrono::seconds kExplainLimit{8};
constexpr std::chrono::seconds kWholeLimit{20};
constexpr std::chrono::seconds kDrainLimit{5};
constexpr std::chrono::milliseconds kOpenPause{200};
constexpr std::chrono::seconds kWriteLimit{5};  // for the folder, once all have answered

}  // namespace

HostsObserver::HostsObserver(Setup setup, Link link)
    : setup_(std::move(setup)), link_(std::move(link)), stalls_(setup_.stall_seconds) {
  open_door(TimePoint{});
}

void HostsObserver::open_door(TimePoint now) {
  open_again_at_ = now + kOpenPause;
  if (auto door = ToolDoor::open(setup_.job_id, setup_.ranks, setup_.command); door.ok())
    door_ = std::move(door).value();
}

Result<std::string> HostsObserver::open_metrics() {
  if (!setup_.metrics) return std::string();
  RUEDA_ASSIGN_OR_RETURN(http_, HttpDoor::open(*setup_.metrics));
  return http_->url();
}

void HostsObserver::add_to_poll(std::vector<pollfd>* fds) const {
  if (door_) door_->add_to_poll(fds);
  if (http_) http_->add_to_poll(fds);
}

int HostsObserver::host_of(Rank rank) const {
  const auto holder = holders_.find(rank);
  return holder == holders_.end() ? -1 : members_.at(holder->second).host;
}

// The newest, but one of an epoch first.
void HostsObserver::number(MemberId member, const Known& known) {
  const auto [holder, is_new] = holders_.emplace(known.rank, member);
  if (!is_new && (known.in_epoch || !members_.at(holder->second).in_epoch)) holder->second = member;
}

void HostsObserver::add_member(int host, MemberId member, Rank rank) {
  members_[member] = {host, rank};
  number(member, members_[member]);
}

void HostsObserver::begin_epoch(const std::map<MemberId, Rank>& ranks) {
  holders_.clear();
  std::erase_if(members_, [&](const auto& entry) {
    const bool gone = entry.second.ended && !ranks.contains(entry.first);
    if (gone) counters_.erase(entry.first);
    return gone;
  });
  for (auto& [member, known] : members_) {
    const auto rank = ranks.find(member);
    known.in_epoch = rank != ranks.end();
    if (known.in_epoch) known.rank = rank->second;
    number(member, known);
  }
}

void HostsObserver::member_ended(MemberId member, bool well) {
  if (!well) ++ranks_lost_;
  if (const auto found = members_.find(member); found != members_.end()) found->second.ended = true;
}

void HostsObserver::forget_member(MemberId member) {
  members_.erase(member);
  counters_.erase(member);
  holders_.clear();
  for (const auto& [other, known] : members_) number(other, known);
}

const HostsObserver::Known* HostsObserver::known(int host, MemberId member) const {
  const auto found = members_.find(member);
  return found == members_.end() || found->second.host != host ? nullptr : &found->second;
}

std::set<Rank> HostsObserver::all_ranks() const {
  std::set<Rank> all;
  for (const auto& [rank, member] : holders_) all.insert(rank);
  return all;
}

std::set<int> HostsObserver::askable() const {
  std::set<int> hosts;
  for (const auto& [member, known] : members_) {
    if (!gone_.contains(known.host) && link_.can_be_asked(known.host)) hosts.insert(known.host);
  }
  return hosts;
}

std::string HostsObserver::folder() const {
  return setup_.folder.empty() ? "rueda-flight-" + setup_.job_id : setup_.folder;
}

void HostsObserver::request_dump(bool stacks) {
  dump_wanted_ = stacks ? all_ranks() : std::set<Rank>();
}

void HostsObserver::take(int host, const control::Heartbeat& message) {
  for (const control::RankCounters& one : message.ranks()) {
    if (known(host, one.member()) != nullptr) counters_[one.member()] = from_wire(one);
  }
}

std::optional<RankCounters> HostsObserver::counters_of(MemberId member) const {
  const auto known = counters_.find(member);
  return known == counters_.end() ? std::nullopt : std::optional(known->second);
}

void HostsObserver::take(int host, control::Observed message) {
  if (!round_ || message.round() != round_->number || !round_->awaited.contains(host)) return;
  const bool last = message.last();
  const Known* const member = known(host, message.member());
  if (message.rank() >= 0 && member != nullptr && holders_.at(member->rank) == message.member()) {
    message.set_rank(member->rank);
    round_->members[member->rank] = message.member();
    take_view(host, &message);
  }
  if (last) round_->awaited.erase(host);
}

void HostsObserver::take_view(int host, control::Observed* message) {
  const int64_t now = host::monotonic_ns();
  const int64_t ahead = now - message->now_ns();
  // A late message makes it look larger than it is.
  const auto [known, is_new] = shift_ns_.emplace(host, ahead);
  const int64_t shift = known->second = is_new ? ahead : std::min(known->second, ahead);
  auto view = view_from_wire(message);
  auto mirror = FlightMirror::make();
  Status status = view.ok() ? mirror.status() : view.status();
  if (status.ok()) {
    for (const FlightPiece& piece : view.value().pieces) {
      if (status.ok()) status = mirror.value().put(piece);
    }
  }
  if (!status.ok())
    return round_->problems.push_back("rank " + std::to_string(message->rank()) + ": " +
                                      status.message());
  RankRecord& record = view.value().record;
  if (round_->purpose == Purpose::kVitals) {
    RankVitals& one = round_->vitals[record.rank];
    one.rank = record.rank;
    one.life = record.life;
    one.state = record.state;
    one.pid = view.value().pid;
    one.use = view.value().use;
    one.stalled = view.value().stalled;
    one.now_ns = message->now_ns();
    one.flight = flight::read_vitals(mirror.value().bytes());
    return;
  }
  record.pid = std::max(0, static_cast<int>(view.value().pid));
  if (auto flight = flight::read_flight(mirror.value().bytes()); flight.ok()) {
    record.flight = std::move(flight).value();
    flight::shift_times(&*record.flight, shift);
  }
  if (round_->purpose == Purpose::kWhole && !round_->folder_hangs) {
    auto memory = std::make_shared<FlightMirror>(std::move(mirror).value());
    writer_.add([folder = folder(), record, memory, now, shift] {
      return write_flight_file(folder, record, memory->bytes(), now, shift);
    });
  }
  const Rank rank = record.rank;
  round_->records.insert_or_assign(rank, std::move(record));
}

void HostsObserver::take(int host, const control::Drained& message) {
  if (!drain_ || drain_->awaited.erase(host) == 0) return;
  drain_->asked += std::max(0, message.asked());
  drain_->ranks += std::max(0, message.ranks());
}

void HostsObserver::host_gone(int host) {
  gone_.insert(host);
  if (round_) round_->awaited.erase(host);
  if (drain_) drain_->awaited.erase(host);
  for (auto& [member, known] : members_) {
    if (known.host != host) continue;
    known.ended = true;
    counters_.erase(member);
  }
}

void HostsObserver::take_question(const ToolDoor::Question& question, TimePoint now) {
  if (question.text == "status") {
    status_wanted_.push_back(question.client);
  } else if (question.text == kVitalsQuestion) {
    vitals_wanted_.push_back(question.client);
  } else if (const auto rank = asked_rank(question.text)) {
    stories_wanted_.emplace_back(question.client, *rank);
  } else if (question.text == "drain") {
    if (!drain_) {
      drain_.emplace();
      drain_->awaited = askable();
      drain_->until = now + kDrainLimit;
      for (const int host : drain_->awaited) {
        control::ControllerMessage message;
        message.mutable_drain();
        link_.send(host, std::move(message));
      }
    }
    drain_->clients.push_back(question.client);
  } else if (question.text.starts_with(kDrainHost)) {
    const std::string host = question.text.substr(kDrainHost.size());
    drained_.emplace_back(question.client, drain_answer(link_.drain_host(host)));
  } else {
    door_->answer(question.client, "");
  }
}

std::vector<std::string> HostsObserver::work(TimePoint now) {
  std::vector<std::string> lines;
  if (!door_ && now >= open_again_at_) open_door(now);
  if (door_) {
    for (const ToolDoor::Question& question : door_->work(now)) take_question(question, now);
  }
  if (http_) {
    for (HttpDoor::Question& scrape : http_->work(now))
      scrapes_wanted_.push_back(std::move(scrape));
  }
  if (!drained_.empty() && (!link_.drains_are_kept || link_.drains_are_kept())) {
    for (auto& [client, answer] : std::exchange(drained_, {}))
      door_->answer(client, std::move(answer));
  }
  if (drain_ && (drain_->awaited.empty() || now > drain_->until)) end_drain();
  if (round_ && (round_->awaited.empty() || now > round_->until) &&
      (round_->purpose != Purpose::kWhole || is_written(now))) {
    end_round(now, &lines);
  }
  if (!round_) begin_next(now);
  if (door_) door_->send_answers();
  if (http_) http_->send_answers();
  return lines;
}

// What the hosts have sent, or no more is waited for.
bool HostsObserver::is_written(TimePoint now) {
  if (!round_->folder_hangs && !writer_.idle()) {
    if (!round_->written_until) round_->written_until = now + kWriteLimit;
    if (now <= *round_->written_until) return false;
    round_->folder_hangs = true;
  }
  writer_.forget();
  for (std::string& problem : writer_.take_problems())
    round_->problems.push_back(std::move(problem));
  if (round_->folder_hangs) {
    round_->problems.push_back(
        "the folder '" + folder() +
        "' does not answer: the flight recorders were not written (is it on a "
        "file server that is gone? --flight-recorder FOLDER names another)");
  }
  return true;
}

bool HostsObserver::something_waits() const {
  return std::any_of(counters_.begin(), counters_.end(), [&](const auto& entry) {
    return static_cast<double>(entry.second.progress.oldest_wait_ms) * 1e-3 >= setup_.stall_seconds;
  });
}

void HostsObserver::begin_next(TimePoint now) {
  Round round;
  if (explain_wanted_) {
    round.purpose = Purpose::kExplain;
    round.due = *std::exchange(explain_wanted_, std::nullopt);
    const std::set<Rank> absent = round.due.absent;
    round.until = now + kExplainLimit;
    begin(std::move(round), Detail::kRecent, absent, now);
  } else if (dump_wanted_) {
    round.purpose = Purpose::kWhole;
    round.until = now + kWholeLimit;
    begin(std::move(round), Detail::kWhole, *std::exchange(dump_wanted_, std::nullopt), now);
  } else if (!status_wanted_.empty()) {
    round.clients = std::exchange(status_wanted_, {});
    round.until = now + kLookLimit;
    begin(std::move(round), Detail::kRecent, {}, now);
  } else if (!vitals_wanted_.empty() || !scrapes_wanted_.empty()) {
    round.purpose = Purpose::kVitals;
    round.clients = std::exchange(vitals_wanted_, {});
    round.scrapes = std::exchange(scrapes_wanted_, {});
    round.until = now + kLookLimit;
    begin(std::move(round), Detail::kVitals, {}, now);
  } else if (!stories_wanted_.empty()) {
    const auto [client, rank] = stories_wanted_.front();
    stories_wanted_.erase(stories_wanted_.begin());
    round.clients = {client};
    round.told = rank;
    round.until = now + kExplainLimit;
    begin(std::move(round), Detail::kRecent, {rank}, now);
  } else if (setup_.stall_seconds > 0 && now >= next_look_) {
    next_look_ = now + kLookEvery;
    if (!something_waits()) return stalls_.forget();
    round.until = now + kLookLimit;
    begin(std::move(round), Detail::kRecent, {}, now);
  }
}

void HostsObserver::begin(Round round, Detail detail, const std::set<Rank>& stacks_of, TimePoint) {
  round.number = ++last_number_;
  // A folder that hung the last time and hangs still.
  round.folder_hangs = round.purpose == Purpose::kWhole && !writer_.idle();
  round.awaited = askable();
  for (const int host : round.awaited) {
    HostQuestion question{round.number, detail, {}};
    for (const Rank rank : stacks_of) {
      if (host_of(rank) == host) question.stacks_of.push_back(rank);
    }
    link_.send(host, to_wire(question));
  }
  round_ = std::move(round);
}

std::pair<RankRecord::Life, std::string> HostsObserver::silence_of(int host,
                                                                   const std::string& name) const {
  if (gone_.contains(host)) return {RankRecord::Life::kDead, "lost with its host " + name};
  return {RankRecord::Life::kSilent, "its host " + name + " does not answer"};
}

// Those that nobody told of, too.
std::vector<RankRecord> HostsObserver::all_records(Round* round) const {
  const std::vector<HostStatus> hosts = link_.hosts();
  for (const auto& [rank, member] : holders_) {
    const auto [entry, is_missing] = round->records.try_emplace(rank);
    if (!is_missing) continue;
    RankRecord& record = entry->second;
    record.rank = rank;
    const int host = members_.at(member).host;
    std::tie(record.life, record.state) = silence_of(host, hosts[static_cast<size_t>(host)].name);
  }
  std::vector<RankRecord> records;
  for (auto& [rank, record] : round->records) records.push_back(std::move(record));
  return records;
}

// As its hosts name themselves in the job.
JobVitals HostsObserver::vitals_of(Round* round) const {
  JobVitals job{setup_.job_id, setup_.command, {}, link_.hosts(), ranks_lost_};
  for (const auto& [rank, member] : holders_) {
    RankVitals& one = round->vitals[rank];
    one.rank = rank;
    const int host = members_.at(member).host;
    one.host = job.hosts[static_cast<size_t>(host)].name;
    if (one.now_ns != 0) continue;
    std::tie(one.life, one.state) = silence_of(host, one.host);
  }
  for (auto& [rank, one] : round->vitals) job.ranks.push_back(std::move(one));
  std::erase_if(job.hosts, [](const HostStatus& host) { return host.name.empty(); });
  return job;
}

JobStatus HostsObserver::status_of(std::vector<RankRecord> records) const {
  JobStatus status{setup_.job_id,      setup_.command, host::monotonic_ns(),
                   std::move(records), link_.hosts(),  {}};
  // Numbers of hosts that were gone before a controller took over.
  std::erase_if(status.hosts, [](const HostStatus& host) { return host.name.empty(); });
  for (const auto& [rank, member] : holders_) {
    const auto counted = counters_.find(member);
    if (counted == counters_.end()) continue;
    status.counters.push_back(counted->second);
    status.counters.back().rank = rank;
  }
  return status;
}

void HostsObserver::end_round(TimePoint, std::vector<std::string>* lines) {
  Round round = std::move(*round_);
  round_.reset();
  lines->insert(lines->end(), round.problems.begin(), round.problems.end());
  if (round.purpose == Purpose::kWhole) {
    std::vector<Rank> missing;
    for (const Rank rank : all_ranks()) {
      if (!round.records.contains(rank)) missing.push_back(rank);
    }
    if (!missing.empty())
      lines->push_back("no flight recorder came from " + name_ranks(missing) +
                       ": their agent is gone or silent");
    if (!round.records.empty() && round.problems.empty())
      lines->push_back("the flight recorders are in '" + folder() + "': rueda explain " + folder());
    return;
  }
  if (round.purpose == Purpose::kVitals) {
    const JobVitals job = vitals_of(&round);
    for (const int client : round.clients) door_->answer(client, vitals_json(job));
    for (const HttpDoor::Question& scrape : round.scrapes) {
      const HttpPage page = metrics_page(scrape.path, job);
      http_->answer(scrape.client, page.code, page.type, page.body);
    }
    return;
  }
  const std::vector<int> clients = round.clients;
  const std::vector<RankRecord> records = all_records(&round);
  if (round.told) {
    std::string story = "there is no rank " + std::to_string(*round.told) + "\n";
    for (const RankRecord& record : records) {
      if (record.rank == *round.told) story = rank_story(record, host::monotonic_ns());
    }
    for (const int client : clients) door_->answer(client, story);
  } else if (!clients.empty()) {
    const JobStatus status = status_of(records);
    const std::string answer = status_json(status) + kStatusCut + status_text(status);
    for (const int client : clients) door_->answer(client, answer);
  } else if (round.purpose == Purpose::kLook) {
    const StallWatch::Due due = stalls_.look(records, host::monotonic_ns());
    if (due.any) explain_wanted_ = due;
  } else {
    explain(round, records, lines);
  }
}

void HostsObserver::explain(const Round& round, const std::vector<RankRecord>& records,
                            std::vector<std::string>* lines) {
  const int64_t now = host::monotonic_ns();
  auto said = explain_waits(records, now, setup_.stall_seconds, Stacks::kAll);
  if (said.empty()) return;
  said = story_.tell(std::move(said), round.due.anew);
  lines->insert(lines->end(), said.begin(), said.end());
  // For the errors of those that wait, which have less room.
  for (const Rank rank : round.due.waiting) {
    std::string text;
    for (const std::string& line :
         explain_waits(records, now, setup_.stall_seconds, Stacks::kPlace, rank)) {
      text += (text.empty() ? "" : "\n") + line;
    }
    // Another one may have that number since.
    const auto member = round.members.find(rank);
    const auto holder = holders_.find(rank);
    if (member == round.members.end() || holder == holders_.end() ||
        holder->second != member->second)
      continue;
    control::ControllerMessage message;
    message.mutable_mail()->set_member(member->second);
    message.mutable_mail()->set_text(text.substr(0, flight::kMailBytes));
    link_.send(host_of(rank), std::move(message));
  }
  if (setup_.dump_stalls) request_dump(true);
}

void HostsObserver::end_drain() {
  const DrainRound drain = *std::exchange(drain_, std::nullopt);
  for (const int client : drain.clients)
    door_->answer(client, drain_answer(drain.asked, drain.ranks));
}

}  // namespace rueda::launcher
