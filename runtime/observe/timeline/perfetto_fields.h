// Fields of Perfetto's trace messages that we write, by the names that they have in its
// protos/perfetto/trace/: trace.proto, trace_packet.proto, clock_snapshot.proto, track_event/.
#pragma once

#include <cstdint>

#include <protozero/types.hpp>

namespace rueda::timeline::perfetto {

using Field = protozero::pbf_tag_type;

namespace trace {
constexpr Field kPacket = 1;
}
namespace packet {
constexpr Field kClockSnapshot = 6, kTimestamp = 8, kTrustedPacketSequenceId = 10, kTrackEvent = 11,
                kInternedData = 12, kSequenceFlags = 13, kTrackDescriptor = 60,
                kTracePacketDefaults = 59, kFirstPacketOnSequence = 87;
constexpr uint32_t kIncrementalStateCleared = 1;  // of sequence_flags
}  // namespace packet
namespace defaults {
constexpr Field kTimestampClockId = 58;
}
namespace snapshot {
constexpr Field kClocks = 1, kClockId = 1, kTimestamp = 2, kIsIncremental = 3;
constexpr uint32_t kBoottime = 6;  // the clock that traces are shown in
}  // namespace snapshot
namespace descriptor {
constexpr Field kUuid = 1, kName = 2, kProcess = 3, kParentUuid = 5, kCounter = 8,
                kChildOrdering = 11, kSiblingOrderRank = 12;
constexpr int32_t kExplicit = 3;                                 // of child_ordering
constexpr Field kPid = 1, kProcessName = 6, kProcessLabels = 8;  // of process
constexpr Field kUnit = 3;                                       // of counter
constexpr int32_t kSizeBytes = 3;                                // of unit
}  // namespace descriptor
namespace event {
constexpr Field kDebugAnnotations = 4, kType = 9, kNameIid = 10, kTrackUuid = 11,
                kCounterValue = 30, kFlowIds = 47, kTerminatingFlowIds = 48;
constexpr int32_t kSliceBegin = 1, kSliceEnd = 2, kInstant = 3, kCounter = 4;  // of type
}  // namespace event
namespace annotation {
constexpr Field kNameIid = 1, kUintValue = 3, kStringValue = 6;
}
namespace interned {
constexpr Field kEventNames = 2, kAnnotationNames = 3;
constexpr Field kIid = 1, kName = 2;  // of one name
}  // namespace interned

}  // namespace rueda::timeline::perfetto
