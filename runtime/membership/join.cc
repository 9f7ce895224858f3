#include "runtime/membership/join.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "collectives/base/log.h"
#include "runtime/membership/joining.h"

namespace rueda::membership {
namespace {

// MPI's connections keep a socket to tell that the peer is gone: one is enough.
size_t tcp_streams(const Config& config) {
  const bool mpi = config.transport == "mpi" || config.transport == "mpi-only";
  return mpi ? 1 : static_cast<size_t>(config.tcp_streams);
}

std::chrono::nanoseconds nanoseconds_of(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(seconds));
}

Status publish_tcp(Joining* joining) {
  const std::string& host = joining->options.config.tcp_address;
  Listener& listener = joining->tcp_listener;
  RUEDA_ASSIGN_OR_RETURN(listener, listen_tcp(host.empty() ? "127.0.0.1" : host, 1024));
  RUEDA_RETURN_IF_ERROR(
      joining->store->set(joining->key_of("tcp", joining->options.place.rank), listener.address));
  for (Rank rank = 0; rank < joining->options.place.size; ++rank) {
    if (joining->local[static_cast<size_t>(rank)]) continue;
    RUEDA_ASSIGN_OR_RETURN(joining->places[static_cast<size_t>(rank)].tcp_address,
                           joining->store->get(joining->key_of("tcp", rank), joining->left()));
  }
  return {};
}

Status connect_all(Joining* joining, const Membership& membership) {
  // Every rank opens its port if any two ranks are on different hosts: each sees that alike.
  const bool all_local =
      std::all_of(joining->local.begin(), joining->local.end(), [](bool l) { return l; });
  if (!all_local) RUEDA_RETURN_IF_ERROR(publish_tcp(joining));
  MeshTask task;
  task.rank = membership.rank;
  task.epoch = membership.epoch;
  task.job_id = joining->options.place.job_id;
  task.unix_listener = &joining->unix_listener;
  task.tcp_listener = all_local ? nullptr : &joining->tcp_listener;
  task.tcp_streams = tcp_streams(joining->options.config);
  task.deadline = joining->deadline;
  task.names = membership.names;
  for (size_t rank = 0; rank < joining->places.size(); ++rank) {
    const bool local = joining->local[rank];
    task.peers.push_back(
        {local, local ? joining->places[rank].unix_address : joining->places[rank].tcp_address});
  }
  task.alive = [joining](Rank rank) {
    RUEDA_RETURN_IF_ERROR(joining->verdict.look(rank));
    return joining->store->get(joining->key_of("place", rank), std::chrono::seconds(1)).status();
  };
  task.silence = nanoseconds_of(joining->options.config.dead_seconds);
  return connect_mesh(task, *joining->key, &joining->sockets);
}

Result<ClockOffset> compare_all_clocks(Joining* joining, const Membership& membership) {
  ClockTask clocks{membership.rank,
                   {},
                   &membership.names,
                   &joining->sockets,
                   joining->store,
                   joining->key_of("clock", 0),
                   [joining](Rank rank) { return joining->patience(rank); }};
  for (const auto& place : joining->places) clocks.hosts.push_back(place.host_id);
  return compare_clocks(clocks);
}

Status join_others(Joining* joining, Joined* joined) {
  RUEDA_ASSIGN_OR_RETURN(joining->unix_listener, listen_unix(1024));
  RUEDA_RETURN_IF_ERROR(exchange_places(joining));
  std::vector<Introduction> members;
  for (const auto& place : joining->places)
    members.push_back({place.host_id, place.host_name, static_cast<int>(place.pid)});
  Membership& membership = joined->membership;
  membership = Membership::of(joining->options.epoch, joining->options.place.rank, members);
  joining->verdict.set_names(membership.names);
  joined->memory.rank = membership.rank;
  joined->memory.host_of = membership.host_of;
  if (!shares_inside_hosts(joining->options.config))
    std::iota(joined->memory.host_of.begin(), joined->memory.host_of.end(), 0);
  RUEDA_RETURN_IF_ERROR(connect_all(joining, membership));
  RUEDA_ASSIGN_OR_RETURN(joined->fabric.clock, compare_all_clocks(joining, membership));
  return open_fabric(joining, joined);
}

Status join_alone(Joining* joining, Joined* joined) {
  joined->membership =
      Membership::of(joining->options.epoch, 0, {own_introduction(joining->options.config)});
  joined->memory.host_of = {0};
  joining->local = {true};
  return open_fabric(joining, joined);
}

// Another rank's doing is said by all ranks in the same words, the agents' where they know it.
Status explain(Joining* joining, const Status& failure) {
  if (failure.code() == Code::kUnavailable && joining->options.agents_verdict) {
    if (Status known = joining->options.agents_verdict(); !known.ok()) {
      (void)joining->verdict.settle(known);
      return known;
    }
  }
  return joining->verdict.settle(failure);
}

}  // namespace

Result<std::unique_ptr<Joined>> join(const JoinOptions& options, rendezvous::Store* store,
                                     const rendezvous::JobKey* key) {
  auto joined = std::make_unique<Joined>();
  Joining joining{
      options, store, key,
      std::chrono::steady_clock::now() + nanoseconds_of(options.config.start_timeout_seconds),
      FirstVerdict(store, Joining::prefix_of(options.epoch), options.place.rank)};
  if (options.place.size == 1) {
    RUEDA_RETURN_IF_ERROR(join_alone(&joining, joined.get()));
    return joined;
  }
  if (const Status done = join_others(&joining, joined.get()); !done.ok())
    return explain(&joining, done);
  const Membership& membership = joined->membership;
  RUEDA_DEBUG("bootstrap", "joined epoch {} as {} of {} ({} on this host), place from {}",
              membership.epoch, membership.own_name(), membership.size, membership.local_size,
              options.place.source);
  return joined;
}

Status said_at_init(rendezvous::StoreClient* store, uint64_t epoch) {
  return FirstVerdict::said_earlier(store, Joining::prefix_of(epoch));
}

}  // namespace rueda::membership
