// What tests start or open, each by its full path in this build folder. The paths are compiled in
// one small file alone: a compiler cache serves all others to every clone.
#pragma once

namespace built {

extern const char* const kFakeCuda;
extern const char* const kFakeKernels;
extern const char* const kStubNccl;
extern const char* const kStubNcclOld;
extern const char* const kStubNcclWindowless;
extern const char* const kStubNcclBroken;
extern const char* const kFakeNvml;
extern const char* const kGpuProgram;
extern const char* const kGpuGroupProgram;
extern const char* const kGpuMessageProgram;
extern const char* const kGpuSpeed;
extern const char* const kXlaProgram;
extern const char* const kRuedarun;
extern const char* const kRuedaTool;
extern const char* const kTestRank;
extern const char* const kElasticRank;
extern const char* const kRankProgram;
extern const char* const kHealProgram;
extern const char* const kFaultProgram;
extern const char* const kOtherLibrary;

}  // namespace built
