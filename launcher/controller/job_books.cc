#include "launcher/controller/job_books.h"

#include <algorithm>
#include <iterator>

#include "launcher/job/rank_environment.h"
#include "launcher/job/summary_report.h"
#include "proto/store_codec.h"

namespace rueda::launcher {
namespace {

constexpr size_t kMostFailed = 16;

}  // namespace

JobBooks::JobBooks(const BooksPlan& plan)
    : plan_(plan),
      console_(plan.options.prefix, plan.options.prefix_timestamp,
               find_variable(plan.base_environment, "NO_COLOR") == nullptr, plan.options.num_proc,
               plan.options.fold),
      epochs_(static_cast<size_t>(plan.options.num_proc)) {
  console_.show_only(plan.options.shown_ranks);
}

Status JobBooks::open(ElasticDoors doors) {
  std::unique_ptr<rendezvous::StoreJournal> journal;
  if (doors.journal) journal = std::make_unique<rendezvous::StoreJournal>(*doors.journal);
  RUEDA_ASSIGN_OR_RETURN(store_, rendezvous::StoreServer::start("", std::move(journal)));
  if (plan_.elastic) {
    const auto begin_epoch = [this](const std::map<MemberId, Rank>& ranks) {
      for (const auto& [member, rank] : ranks) {
        Output& output = outputs_[member];
        output.rank = rank;
        if (output.lines != nullptr) output.lines->be(rank);
      }
      forget_outputs(ranks);
    };
    elastic_ = std::make_unique<ElasticMembers>(
        *plan_.elastic, store_.get(),
        ElasticMembers::Doors{std::move(doors.tell), [this](const std::string& text) { say(text); },
                              std::move(doors.ready_hosts), std::move(doors.address_of),
                              begin_epoch, std::move(doors.keep), doors.takes_over});
  }
  if (!doors.takes_over) remove_stale_parts(plan_.timeline);
  if (!plan_.options.output_folder.empty()) {
    RUEDA_ASSIGN_OR_RETURN(copies_, OutputCopies::create(plan_.options.output_folder,
                                                         plan_.options.num_proc, doors.takes_over));
  }
  return {};
}

// Of those that have ended; the job may fail as one of the first that have failed, whose last words
// are told then.
void JobBooks::forget_outputs(const std::map<MemberId, Rank>& ranks) {
  for (auto& [member, output] : outputs_) {
    const bool is_over =
        ended_.contains(member) && output.lines != nullptr && output.lines->ended();
    if (is_over && !ranks.contains(member) && !first_failed_.contains(member)) output.lines.reset();
  }
}

Result<std::string> JobBooks::drain_host(const std::string& host) {
  if (elastic_ == nullptr)
    return failed_precondition(
        "the job is not elastic (--min-np): it goes on with all its hosts or not at all; `rueda "
        "drain` without a host asks its ranks to stop");
  Result<std::string> outlook = elastic_->drain(host);
  if (outlook.ok()) say("rueda drain: " + outlook.value());
  return outlook;
}

// In a job of fixed size a member's number is its rank.
Status JobBooks::attach(UniqueFd connection, MemberId member, const std::string& host) {
  if (elastic_ == nullptr) epochs_.set_host(static_cast<Rank>(member), host);
  return store_->add(std::move(connection), member);
}

RankOutput* JobBooks::output_of(MemberId member, Rank rank) {
  Output& output = outputs_[member];
  if (output.lines == nullptr) {
    output.rank = rank;
    output.lines = std::make_unique<RankOutput>(rank, &console_);
    output.lines->copy_to(copies_.get());
  }
  return output.lines.get();
}

void JobBooks::add_to_poll(std::vector<pollfd>* fds) const {
  console_.add_to_poll(fds);
  if (copies_) copies_->add_to_poll(fds);
  if (elastic_ != nullptr)
    elastic_->add_to_poll(fds);
  else if (store_ != nullptr)
    fds->push_back({store_->entries_fd(), POLLIN, 0});
}

std::optional<LineFolder::TimePoint> JobBooks::next_deadline() const {
  const auto lines = console_.next_deadline();
  const auto members = elastic_ != nullptr ? elastic_->next_deadline() : std::nullopt;
  if (!lines || !members) return lines ? lines : members;
  return std::min(*lines, *members);
}

void JobBooks::work() {
  if (copies_) {
    for (const std::string& line : copies_->take_problems()) say(line);
  }
  if (elastic_ != nullptr)
    elastic_->work(std::chrono::steady_clock::now());
  else if (store_ != nullptr)
    answer_entries(&epochs_, store_.get());
  console_.flush();
}

bool JobBooks::rank_ended(RankEnd end, const std::string& text) {
  if (!ended_.insert(end.member).second) return false;
  store_->mark_dead(end.member, text);
  if (end.wait_status != 0 && !end.removed && first_failed_.size() < kMostFailed)
    first_failed_.insert(end.member);
  if (elastic_ != nullptr) elastic_->ended(end);
  ends_.push_back(std::move(end));
  return true;
}

bool JobBooks::any_failed() const {
  return std::any_of(ends_.begin(), ends_.end(),
                     [](const RankEnd& end) { return end.wait_status != 0 && !end.removed; });
}

bool JobBooks::rank_lost(const life::LostRank& lost, const std::function<void()>& tell) {
  if (lost_ && (lost_->member != lost.member || lost_->cause_is_final != 0)) return false;
  const bool first = !lost_;
  lost_ = lost;
  tell();
  if (first) store_->mark_dead(lost.member, lost.describe());
  return first;
}

Rank JobBooks::rank_of(MemberId member) const {
  const auto output = outputs_.find(member);
  return output == outputs_.end() ? static_cast<Rank>(member) : output->second.rank;
}

JobEnd JobBooks::elastic_end() const {
  JobEnd job;
  job.decided.emplace();
  if (const auto& over = elastic_->over()) {
    job.decided = {over->exit_code, over->text, over->failed, {}};
    for (const membership::LossLine& line : over->unsaid)
      job.decided->losses.push_back(line.text());
  }
  const auto& culprit = job.decided->culprit;
  std::copy_if(ends_.begin(), ends_.end(), std::back_inserter(job.ends),
               [&](const RankEnd& end) { return end.member == culprit; });
  if (job.ends.empty()) return job;
  const Rank rank = job.ends.front().rank;
  if (const auto output = outputs_.find(*culprit);
      output != outputs_.end() && output->second.lines != nullptr)
    job.last_words[rank] = output->second.lines->last_words();
  for (const rendezvous::Report& report : store_->reports()) {
    if (report.key == "failure" && report.member == *culprit)
      job.reports.emplace_back(rank, report.value);
  }
  return job;
}

JobEnd JobBooks::end() const {
  if (elastic_ != nullptr) return elastic_end();
  JobEnd job;
  std::copy_if(ends_.begin(), ends_.end(), std::back_inserter(job.ends),
               [](const RankEnd& end) { return !end.removed; });
  // By rank the newest member's.
  for (const auto& [member, output] : outputs_) {
    job.last_words[output.rank] = output.lines->last_words();
  }
  if (store_ == nullptr) return job;
  for (const rendezvous::Report& report : store_->reports()) {
    if (report.key == "failure") job.reports.emplace_back(rank_of(report.member), report.value);
  }
  return job;
}

void JobBooks::close_outputs(const Patience& patience) {
  for (const auto& [member, output] : outputs_) {
    if (output.lines == nullptr) continue;
    output.lines->end(Stream::kStdout);
    output.lines->end(Stream::kStderr);
  }
  if (!copies_) return;
  for (const std::string& line : copies_->finish(patience.is_wanted)) say(line);
}

void JobBooks::close_store() {
  if (store_ != nullptr) store_->stop();
}

int JobBooks::conclude(JobEnd job, const Patience& patience) {
  std::map<Rank, wire::RankSummary> summaries;
  for (const rendezvous::Report& report : store_->reports()) {
    wire::RankSummary summary;
    if (report.key == "summary" && wire::decode(report.value, &summary).ok())
      summaries[rank_of(report.member)] = std::move(summary);
  }
  const int size = std::max(plan_.options.num_proc,
                            summaries.empty() ? 0 : std::prev(summaries.end())->first + 1);
  for (const std::string& line : finish_timelines(plan_.timeline)) say(line);
  if (plan_.summary) {
    for (const std::string& line : summary_report(summaries, size, job.ends)) say(line);
  }
  const Verdict verdict = judge(job);
  for (const std::string& line : verdict.lines) say(line);
  drain_console(patience);
  return verdict.exit_code;
}

void JobBooks::drain_console(const Patience& patience) {
  console_.release_lines();
  console_.flush();
  while (console_.pending() && patience.is_wanted()) {
    std::vector<pollfd> fds;
    patience.add_to_poll(&fds);
    console_.add_to_poll(&fds);
    poll(fds.data(), fds.size(), -1);
    console_.flush();
  }
}

}  // namespace rueda::launcher
