// The messages of proto/control.proto under a short name.
#pragma once

#include <proto/control.pb.h>

namespace rueda::launcher {

namespace control = ::rueda::control::v1;

}  // namespace rueda::launcher
