// Who is where: each rank says it in the store, and reads what all others say.
#include <unistd.h>

#include <spdlog/fmt/fmt.h>

#include "collectives/base/config.h"
#include "collectives/base/version.h"
#include "collectives/transport/frame.h"
#include "proto/store_codec.h"
#include "runtime/membership/joining.h"

namespace rueda::membership {
namespace {

std::string name_of(const wire::PlaceInfo& place) {
  return membership::name_of(place.rank, {"", place.host_name, static_cast<int>(place.pid)});
}

wire::PlaceInfo own_place(const Joining& joining) {
  const Config& config = joining.options.config;
  Introduction me = own_introduction(config);
  wire::PlaceInfo mine;
  mine.version = version_number();
  mine.rank = joining.options.place.rank;
  mine.size = joining.options.place.size;
  mine.pid = me.pid;
  mine.host_name = std::move(me.host_name);
  mine.host_id = std::move(me.host_id);
  mine.unix_address = joining.unix_listener.address;
  mine.agreed_settings = agreed_settings(config);
  mine.layout_hash = std::to_string(layout_of(config, 1).hash()) + "/" +
                     std::to_string(sizeof(transport::FrameHeader));
  return mine;
}

Status compare(const wire::PlaceInfo& theirs, Rank rank, const wire::PlaceInfo& mine) {
  if (theirs.version != mine.version) {
    return failed_precondition(name_of(theirs) + " has rueda " + version_text(theirs.version) +
                               ", " + name_of(mine) + " has rueda " + version() +
                               ": install the same one everywhere")
        .with_rank(rank);
  }
  if (theirs.rank != rank || theirs.size != mine.size || theirs.layout_hash != mine.layout_hash) {
    return failed_precondition(name_of(theirs) + " runs another version of rueda than " +
                               name_of(mine))
        .with_rank(rank);
  }
  if (theirs.agreed_settings != mine.agreed_settings) {
    return failed_precondition("settings differ: " + name_of(theirs) + " has " +
                               settings_that_differ(theirs.agreed_settings, mine.agreed_settings) +
                               ", which " + name_of(mine) + " has; set them alike on all ranks")
        .with_rank(rank);
  }
  return {};
}

}  // namespace

Introduction own_introduction(const Config& config) {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return {host_identity(config.host_id), name, getpid()};
}

bool shares_inside_hosts(const Config& config) {
  return config.transport == "auto" || config.transport == "mpi";
}

host::ArenaLayout layout_of(const Config& config, Rank local_size, size_t hosts) {
  host::ArenaLayout layout;
  layout.hosts = hosts;
  layout.local_size = local_size;
  layout.chunk_bytes = static_cast<size_t>(config.chunk_bytes);
  layout.buffers = static_cast<size_t>(config.staging_buffers);
  return layout;
}

Status exchange_places(Joining* joining) {
  const Config& config = joining->options.config;
  const wire::PlaceInfo mine = own_place(*joining);
  RUEDA_RETURN_IF_ERROR(
      joining->store->set(joining->key_of("place", mine.rank), wire::encode(mine)));
  const bool share = shares_inside_hosts(config);
  for (Rank rank = 0; rank < mine.size; ++rank) {
    auto text = joining->store->get(joining->key_of("place", rank), joining->left());
    if (!text.ok()) {
      if (text.status().code() != Code::kDeadlineExceeded) return text.status();
      return deadline_exceeded(fmt::format("rank {} has not called init after {:g} s "
                                           "(RUEDA_START_TIMEOUT)",
                                           rank, config.start_timeout_seconds))
          .with_rank(rank);
    }
    wire::PlaceInfo info;
    RUEDA_RETURN_IF_ERROR(wire::decode(text.value(), &info));
    RUEDA_RETURN_IF_ERROR(compare(info, rank, mine));
    joining->local.push_back(share && info.host_id == mine.host_id);
    joining->places.push_back(std::move(info));
  }
  return {};
}

}  // namespace rueda::membership
