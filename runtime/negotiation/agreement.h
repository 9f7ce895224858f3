// What the ranks must agree on for one tensor, checked when the last of them has submitted it.
// Pure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "proto/messages.h"
#include "runtime/negotiation/requests.h"

namespace rueda::negotiation {

// What join is called on the wire; one at a time is under way in a process set.
inline constexpr char kJoinName[] = "join";
// A change of the process sets, and its second half: one at a time.
inline constexpr char kChangeName[] = "process_set.change";
inline constexpr char kChangeEndName[] = "process_set.end";

// "allreduce 'fc1.weight'" for the wire name "allreduce.fc1.weight".
std::string title_of(const wire::Request& request);
std::string title_of(const std::string& wire_name);

// by_rank: every member's request, none null; ranks: the members' numbers, empty where they are
// 0, 1, ... The first disagreement in Horovod's order of checks
// (dtype, kind, shape, scales, reduce op, dimensions, root, device, group), with each value and the
// ranks that sent it:
//   "Mismatched data types: allreduce 'x': rank 0 sent float32[17]; ranks 1, 2 sent float64[17]"
// sites: where each member called it, "" or empty where that is not known: "... sent float32[17] at
// train.py:22 in step; ..."
Status check_agreement(const std::vector<RequestPtr>& by_rank, const std::vector<Rank>& ranks = {},
                       const std::vector<std::string>& sites = {});

// Allgathers and alltoalls that agree, into outputs of the callers: has each of them room for
// exactly the rows that its rank receives? by_place: null where a rank has joined, which sends
// nothing; ranks and sites as above.
//   "Mismatched ALLGATHER output rows: allgather 'x': rank 1 has room for 9 rows, 12 arrive; ..."
Status check_output_rows(const std::vector<RequestPtr>& by_place,
                         const std::vector<Rank>& ranks = {},
                         const std::vector<std::string>& sites = {});

// Groups the ranks by what they sent: "rank 0 sent 3 rows; ranks 1, 2 sent 4 rows". "" when all
// sent the same. Arguments as above; value is asked once for each place, in their order.
std::string who_sent(const std::vector<RequestPtr>& by_place, const std::vector<Rank>& ranks,
                     const std::vector<std::string>& sites,
                     const std::function<std::string(const wire::Request&)>& value);

// What a request to add or remove a process set asks for: "to add [0, 1]".
std::string describe_change(const wire::Request& request);

// "rank 3", "ranks 0, 2"
std::string name_ranks(const std::vector<Rank>& ranks);

// Where ranks called, sites[i] by ranks[i]: " at train.py:22 in step"; where they differ " at
// train.py:22 in step (rank 0), at train.py:30 in step (ranks 1, 2)"; "" where no site is known.
std::string name_sites(const std::vector<Rank>& ranks, const std::vector<std::string>& sites);

}  // namespace rueda::negotiation
