#include "runtime/negotiation/call_sites.h"

#include <utility>

namespace rueda::negotiation {

void CallSites::ask(std::vector<std::string> names, const std::vector<std::vector<Rank>>& senders,
                    size_t members, Time now, About about) {
  Question question;
  question.until = now + kPatience;
  question.answered.about = std::move(about);
  question.answered.sites.assign(names.size(), std::vector<std::string>(members));
  question.awaited.assign(names.size(), std::vector<bool>(members));
  for (size_t i = 0; i < names.size(); ++i) {
    for (const Rank place : senders[i]) question.awaited[i][static_cast<size_t>(place)] = true;
    question.left += senders[i].size();
  }
  unasked_.insert(unasked_.end(), names.begin(), names.end());
  question.names = std::move(names);
  questions_.push_back(std::move(question));
}

std::vector<std::string> CallSites::take_questions() { return std::exchange(unasked_, {}); }

void CallSites::on_answer(Rank place, const wire::CallSite& site) {
  for (Question& question : questions_) {
    for (size_t i = 0; i < question.names.size(); ++i) {
      if (question.names[i] != site.name) continue;
      const auto from = static_cast<size_t>(place);
      if (!question.awaited[i][from]) continue;
      question.awaited[i][from] = false;
      --question.left;
      question.answered.sites[i][from] = site.place;
    }
  }
}

void CallSites::close() {
  for (Question& question : questions_) question.left = 0;
}

std::vector<CallSites::Answered> CallSites::take_answered(Time now) {
  std::vector<Answered> answered;
  for (auto it = questions_.begin(); it != questions_.end();) {
    if (it->left > 0 && now < it->until) {
      ++it;
      continue;
    }
    answered.push_back(std::move(it->answered));
    it = questions_.erase(it);
  }
  return answered;
}

std::optional<Time> CallSites::next_deadline() const {
  std::optional<Time> earliest;
  for (const Question& question : questions_) {
    if (!earliest || question.until < *earliest) earliest = question.until;
  }
  return earliest;
}

}  // namespace rueda::negotiation
