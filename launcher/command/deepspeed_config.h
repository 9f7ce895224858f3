// `--deepspeed-config`: a file that the ranks read (hvd.initialize), looked at before any starts.
#pragma once

#include "launcher/command/options.h"

namespace rueda::launcher {

// The variable that tells ranks where the file is, by its absolute path, among the settings.
// InvalidArgument, in one sentence, for a file that is not there or holds no JSON object.
Status add_deepspeed_config(Options* options);

}  // namespace rueda::launcher
