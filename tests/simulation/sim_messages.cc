#include "tests/simulation/sim_messages.h"

#include <algorithm>

namespace rueda::testing {

SimMessages::SimMessages(SimWorld* world, Rank rank, int ranks_per_host, Doors doors)
    : SimChannel(world, rank, std::move(doors)),
      ranks_per_host_(static_cast<Rank>(ranks_per_host)),
      hosts_((world->size + ranks_per_host_ - 1) / ranks_per_host_),
      entered_(static_cast<size_t>(world->size)),
      came_(static_cast<size_t>(hosts_)),
      pending_(static_cast<size_t>(hosts_)) {}

template <typename F>
void SimMessages::for_neighbours(const F& f) const {
  const Rank first = first_of(host_of(rank_));
  for (Rank r = first; r < std::min(first + ranks_per_host_, world_->size); ++r) {
    if (r != rank_) f(r);
  }
}

void SimMessages::say_entered() {
  const Mark mark{generation(), entered()};
  for_neighbours([&](Rank r) {
    world_->after(world_->delay(), [this, r, mark] { at(r)->see_entered(rank_, mark); });
  });
  move_on();
}

void SimMessages::say_last_word() {
  const LastWord word{generation(), entered()};
  for (Rank r = 0; r < world_->size; ++r) {
    const bool forgotten = world_->bug == Bug::kForgetsOneMember && r == (rank_ + 1) % world_->size;
    if (r == rank_ || forgotten) continue;
    world_->carry(rank_, r, Stream::kControl,
                  [this, r, word] { at(r)->receive_last_word(rank_, word); });
  }
}

void SimMessages::on_begin() {
  sent_ = announced_ = 0;
  for (auto& data : pending_) data.clear();
  move_on();
}

// ---- what comes

void SimMessages::see_entered(Rank neighbour, Mark mark) {
  Mark& seen = entered_[static_cast<size_t>(neighbour)];
  if (dead_ || mark <= seen) return;
  seen = mark;
  move_on();
}

void SimMessages::see_all(Mark mark) {
  if (dead_ || mark <= all_) return;
  all_ = mark;
  move_on();
}

void SimMessages::receive(Rank host, Data data) {
  if (dead_) return;
  if (data.generation > generation()) {
    ++world_->early_data;
    if (world_->bug == Bug::kDropsWhatIsEarly) return;
  }
  if (data.generation < generation()) {
    ++world_->late_data;
    if (world_->bug == Bug::kOldDataCounts) data.generation = generation();
  }
  came_[static_cast<size_t>(host)].push_back(std::move(data));
  move_on();
}

void SimMessages::receive_last_word(Rank from, LastWord word) {
  if (dead_) return;
  if (word.generation > generation() && world_->bug == Bug::kDropsWhatIsEarly) return;
  if (word.generation == generation() && heard(from) < word.entered) ++world_->overtaken;
  hear_last_word(from, word);
}

// ---- what follows from it

void SimMessages::move_on() {
  if (!in_plan()) return;
  for_neighbours([&](Rank r) {
    const Mark& mark = entered_[static_cast<size_t>(r)];
    if (mark.generation == generation()) hear_entered(r, mark.batches);
  });
  if (is_first()) {
    send_data();
    for (Rank host = 0; host < hosts_; ++host) take_data(host);
    const Mark all{generation(), least_heard(0, world_->size)};
    if (all.batches > std::exchange(announced_, all.batches)) {
      for_neighbours(
          [&](Rank r) { world_->after(world_->delay(), [this, r, all] { at(r)->see_all(all); }); });
    }
  }
  for (Rank r = 0; r < world_->size && all_.generation == generation(); ++r)
    hear_entered(r, all_.batches);
}

uint64_t SimMessages::least_heard(Rank first, Rank end) const {
  uint64_t least = UINT64_MAX;
  for (Rank r = first; r < std::min(end, world_->size); ++r) least = std::min(least, heard(r));
  return least;
}

// All of the host have entered it, so it has not run here yet.
void SimMessages::send_data() {
  const Rank here = host_of(rank_);
  const uint64_t ready = least_heard(first_of(here), first_of(here + 1));
  for (; sent_ < ready; ++sent_) {
    const Data data{generation(), text_of(sent_)};
    for (Rank host = 0; host < hosts_; ++host) {
      if (host == here) continue;
      SimMessages* const peer = at(first_of(host));
      world_->carry(rank_, first_of(host), Stream::kData,
                    [peer, here, data] { peer->receive(here, data); });
    }
  }
}

void SimMessages::take_data(Rank host) {
  auto& came = came_[static_cast<size_t>(host)];
  while (!came.empty() && came.front().generation <= generation()) {
    Data data = std::move(came.front());
    came.pop_front();
    if (data.generation < generation()) continue;
    pending_[static_cast<size_t>(host)].push_back(std::move(data));
    const uint64_t batches = heard(first_of(host)) + 1;
    for (Rank r = first_of(host); r < std::min(first_of(host + 1), world_->size); ++r)
      hear_entered(r, batches);
  }
}

void SimMessages::check_data(uint64_t number, const std::string& text) {
  if (!is_first()) return;
  for (Rank host = 0; host < hosts_; ++host) {
    if (host == host_of(rank_)) continue;
    auto& data = pending_[static_cast<size_t>(host)];
    if (data.empty() || data.front().text != text) {
      return world_->fail("batch " + std::to_string(number) + ", '" + text + "', ran on data of '" +
                          (data.empty() ? "" : data.front().text) + "'");
    }
    data.pop_front();
  }
}

}  // namespace rueda::testing
